use super::*;

fn both(write: impl Fn(&mut Reply<'_>)) -> (String, String) {
    let render = |resp3| {
        let mut out = Vec::new();
        write(&mut Reply::new(&mut out, resp3));
        String::from_utf8(out).unwrap()
    };
    (render(false), render(true))
}

#[test]
fn golden_replies() {
    for (write, resp2, resp3) in [
        ((|r| r.ok()) as fn(&mut Reply<'_>), "+OK\r\n", "+OK\r\n"),
        (|r| r.status("PONG"), "+PONG\r\n", "+PONG\r\n"),
        (|r| r.error("ERR a\r\nb"), "-ERR a  b\r\n", "-ERR a  b\r\n"),
        (|r| r.integer(0), ":0\r\n", ":0\r\n"),
        (|r| r.integer(i64::MIN), ":-9223372036854775808\r\n", ":-9223372036854775808\r\n"),
        (|r| r.boolean(true), ":1\r\n", "#t\r\n"),
        (|r| r.boolean(false), ":0\r\n", "#f\r\n"),
        (|r| r.bulk(b""), "$0\r\n\r\n", "$0\r\n\r\n"),
        (|r| r.bulk(b"a\r\nb"), "$4\r\na\r\nb\r\n", "$4\r\na\r\nb\r\n"),
        (|r| r.bulk_display(42), "$2\r\n42\r\n", "$2\r\n42\r\n"),
        (|r| r.verbatim(b"hi"), "$2\r\nhi\r\n", "=6\r\ntxt:hi\r\n"),
        (|r| r.double(1.5), "$3\r\n1.5\r\n", ",1.5\r\n"),
        (|r| r.double(f64::INFINITY), "$3\r\ninf\r\n", ",inf\r\n"),
        (|r| r.null(), "$-1\r\n", "_\r\n"),
        (|r| r.null_array(), "*-1\r\n", "_\r\n"),
        (|r| r.array(2), "*2\r\n", "*2\r\n"),
        (|r| r.map(2), "*4\r\n", "%2\r\n"),
        (|r| r.set(2), "*2\r\n", "~2\r\n"),
    ] {
        assert_eq!(both(write), (resp2.to_string(), resp3.to_string()));
    }
}

#[test]
fn heads_can_come_last() {
    for count in [0usize, 1, 9, 10, 12345] {
        let elements = |r: &mut Reply<'_>| (0..count).for_each(|index| r.integer(index as i64 * 7));
        let deferred = both(|r| {
            r.status("before");
            let place = r.defer();
            elements(r);
            r.map_at(place, count / 2);
        });
        let direct = both(|r| {
            r.status("before");
            r.map(count / 2);
            elements(r);
        });
        assert_eq!(deferred, direct);
        let deferred = both(|r| {
            let place = r.defer();
            elements(r);
            r.array_at(place, count);
        });
        let direct = both(|r| {
            r.array(count);
            elements(r);
        });
        assert_eq!(deferred, direct);
    }
}

#[test]
fn long_texts_are_whole() {
    let text = "x".repeat(1000);
    assert_eq!(both(|r| r.bulk_display(&text)).0, format!("$1000\r\n{text}\r\n"));
}
