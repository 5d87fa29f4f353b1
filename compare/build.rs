//! Looks for Debian's LevelDB: it has no crate that builds everywhere, so it takes part where it is installed.

use std::env;
use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=/usr/include/leveldb/c.h");
    println!("cargo:rerun-if-env-changed=LEVELDB_LIB_DIR");
    if env::var_os("CARGO_FEATURE_LEVELDB").is_none() {
        return;
    }
    let elsewhere = env::var("LEVELDB_LIB_DIR").ok();
    if elsewhere.is_none() && !Path::new("/usr/include/leveldb/c.h").exists() {
        println!("cargo:warning=LevelDB is left out: install libleveldb-dev, or set LEVELDB_LIB_DIR");
        return;
    }
    if let Some(directory) = elsewhere {
        println!("cargo:rustc-link-search=native={directory}");
    }
    println!("cargo:rustc-link-lib=leveldb");
    println!("cargo:rustc-cfg=leveldb_installed");
}
