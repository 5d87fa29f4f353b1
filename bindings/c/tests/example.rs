//! The header and the example in C, compiled by the machine's compiler.

use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;

use hedgerow_kvssd_c::*;
use hedgerow_sim::{Scratch, skip};

/// Whether there is a C compiler. Where CI runs there must be one.
fn has_compiler() -> bool {
    let has = Command::new("cc").arg("--version").output().is_ok_and(|output| output.status.success());
    if !has {
        assert!(std::env::var_os("CI").is_none(), "no C compiler");
        skip("there is no cc");
    }
    has
}

/// The library to link with, in the folder that this test was built in; built if it is not there.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let folder = test.parent().and_then(Path::parent).expect("tests are in the folder deps of a profile");
    let library = folder.join("libhedgerow_kvssd_c.a");
    if !library.is_file() {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "-p", "hedgerow-kvssd-c", "--target-dir"]);
        build.arg(folder.parent().expect("a profile is in the target directory"));
        if folder.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo runs").success());
    }
    library
}

/// Compiles a program, with every warning an error, and links it with what is given.
fn compile(source: &Path, program: &Path, library: Option<PathBuf>) {
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-std=c99"]);
    cc.arg("-I").arg(concat!(env!("CARGO_MANIFEST_DIR"), "/include")).arg(source).arg("-o").arg(program);
    cc.args(library).args(["-lpthread", "-ldl", "-lm"]);
    let output = cc.output().expect("cc runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_example_does_what_it_says() {
    if !has_compiler() {
        return;
    }
    let scratch = Scratch::made("kvssd-c-example");
    let program = scratch.join("pairs");
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/pairs.c"));
    compile(source, &program, Some(library()));
    let output = Command::new(&program).arg(scratch.join("device")).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines[0], lines[lines.len() - 1]), ("apple = red", "leek = green"));
    lines.sort_unstable();
    assert_eq!(lines, ["apple = red", "entry f:apple = red", "entry f:plum = blue", "leek = green"]);
    // The device is there already: it is not made anew.
    let again = Command::new(&program).arg(scratch.join("device")).output().expect("it runs");
    assert!(String::from_utf8_lossy(&again.stderr).contains("make a device: code 0x12"), "{again:?}");
}

/// Types have the same bytes in C and here: sizes, and where each field begins.
#[test]
fn layouts_are_the_same_in_c() {
    if !has_compiler() {
        return;
    }
    let mut program = String::from("#include <hedgerow_kvssd.h>\n#include <stddef.h>\n");
    let mut checks = 0;
    let mut check = |what: String, number: usize| {
        checks += 1;
        program += &format!("typedef char check_{checks}[({what} == {number}) ? 1 : -1];\n");
    };
    macro_rules! same {
        ($c:literal, $rust:ty, $($field:ident),+) => {
            check(format!("sizeof({})", $c), size_of::<$rust>());
            $(check(format!("offsetof({}, {})", $c, stringify!($field)), offset_of!($rust, $field));)+
        };
    }
    same!("kvs_key", KvsKey, key, length);
    same!("kvs_value", KvsValue, value, length, actual_value_size, offset);
    same!("kvs_device", KvsDevice, capacity, unalloc_capacity, max_value_len, max_key_len, optimal_value_len);
    same!("kvs_device", KvsDevice, optimal_value_granularity);
    same!("kvs_key_space_name", KvsKeySpaceName, name_len, name);
    same!("kvs_key_space", KvsKeySpace, opened, capacity, free_size, count, name);
    same!("kvs_option_key_space", KvsOptionKeySpace, ordering);
    same!("kvs_option_store", KvsOptionStore, st_type);
    same!("kvs_option_retrieve", KvsOptionRetrieve, kvs_retrieve_delete);
    same!("kvs_option_delete", KvsOptionDelete, kvs_delete_error);
    same!("kvs_option_iterator", KvsOptionIterator, iter_type);
    same!("kvs_key_group_filter", KvsKeyGroupFilter, bitmask, bit_pattern);
    same!("kvs_iterator_list", KvsIteratorList, num_entries, end, size, it_list);
    same!("kvs_exist_list", KvsExistList, length, result_buffer);
    same!("kvs_kvp_info", KvsKvpInfo, key_len, value_len);
    same!("kvs_postprocess_context", KvsPostprocessContext, context, result, ks_hd, key, value, private1);
    same!("kvs_postprocess_context", KvsPostprocessContext, private2);
    program += "int main(void) { return 0; }\n";
    let scratch = Scratch::made("kvssd-c-layout");
    let source = scratch.join("layout.c");
    #[expect(clippy::disallowed_methods, reason = "a file for the compiler, not of a store")]
    std::fs::write(&source, program).expect("a scratch directory can be written to");
    compile(&source, &scratch.join("layout"), None);
}
