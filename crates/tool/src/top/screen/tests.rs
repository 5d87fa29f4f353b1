//! What is drawn of a server that is made up, in several sizes, and of one that tells little.

use super::*;

/// A server that does something of everything.
const BEFORE: &str = "hedgerow_version:0.1.0
run_id:a
uptime_in_seconds:273600
connected_clients:12
blocked_clients:1
used_memory:33554432
used_memory_peak:50331648
used_memory_rss:134217728
maxmemory:67108864
durability:interval:1s
rdb_changes_since_last_save:1500
total_connections_received:3
total_commands_processed:1000
total_net_input_bytes:0
total_net_output_bytes:0
total_error_replies:0
keyspace_hits:100
keyspace_misses:0
cmdstat_hget:calls=600,usec=1200
cmdstat_hset:calls=400,usec=2000
cmdstat_info:calls=1,usec=200
store:tiered:./hedgerow-data
read_only:0
waits_for_space:0
waits_for_rows:10
backup_status:none
rows:136000
tables:2
index_bytes:983040
index_bytes_max:1048576
fast_tier_bytes:67108864
fast_tier_allocated_bytes:66060288
fast_tier_bytes_max:67108864
live_bytes:33554432
obsolete_bytes:8388608
unused_bytes:4194304
puts:400
updates:0
gets:1000
deletes:0
scans:0
syncs:1
segments_collected:10
segments_quarantined:0
bytes_collected:1048576
chains_merged:0
cache_active:1
cache_rows:500
cache_bytes:1048576
cache_bytes_max:4194304
cache_hits:0
cache_misses:0
write_throttle_ns_per_kib:5600
write_throttle_ns:0
oldest_snapshot_age_ms:0
groups_max:16
groups_owed_percent:150
runs_max:8
knob_turns:3
sealed_rows:115000
sealed_groups:3
sealed_fast_tier_bytes:3145728
sealed_memory_bytes:262144
sealed_looks:0
sealed_leaves_read:0
sealed_keys:0
sealed_keys_merged:0
sorted_runs:4
sorted_bytes:5242880
sorted_bytes_max:10485760
sorted_rows:133000
sorted_record_bytes:1000
sorted_garbage_bytes:250
sorted_looks:0
block_cache_bytes:8388608
block_cache_bytes_max:25165824
block_cache_hits:0
block_cache_misses:0
record_cache_bytes:0
record_cache_bytes_max:75497472
record_cache_hits:0
records_moved:0
bytes_moved:0
merges:0
bytes_merged:0
merges_failed:0
bytes_to_move:2097152
";

/// The same two seconds later.
fn after() -> String {
    let changes = [
        ("total_commands_processed:1000", "total_commands_processed:164000"),
        ("total_net_input_bytes:0", "total_net_input_bytes:2097152"),
        ("keyspace_hits:100", "keyspace_hits:1000"),
        ("keyspace_misses:0", "keyspace_misses:100"),
        ("cmdstat_hget:calls=600,usec=1200", "cmdstat_hget:calls=100600,usec=451200"),
        ("cmdstat_hset:calls=400,usec=2000", "cmdstat_hset:calls=62400,usec=744000"),
        ("cmdstat_info:calls=1,usec=200", "cmdstat_info:calls=3,usec=600"),
        ("gets:1000", "gets:163000"),
        ("puts:400", "puts:62400"),
        ("waits_for_rows:10", "waits_for_rows:13"),
        ("cache_hits:0\ncache_misses:0", "cache_hits:300\ncache_misses:100"),
        ("write_throttle_ns:0", "write_throttle_ns:900000"),
        ("sealed_looks:0", "sealed_looks:1000"),
        ("sealed_leaves_read:0", "sealed_leaves_read:1500"),
        ("records_moved:0", "records_moved:50000"),
        ("segments_collected:10", "segments_collected:34"),
    ];
    changes.iter().fold(BEFORE.to_string(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    })
}

struct Scene {
    monitor: Monitor,
    start: Instant,
}

impl Scene {
    fn new() -> Scene {
        let monitor = Monitor::new("127.0.0.1:6379".into(), Duration::from_secs(2));
        Scene { monitor, start: Instant::now() }
    }

    /// Answers two seconds apart.
    fn of(answers: &[&str]) -> Scene {
        let mut scene = Scene::new();
        answers.iter().enumerate().for_each(|(turn, answer)| scene.take(2 * turn as u64, answer));
        scene
    }

    fn take(&mut self, second: u64, answer: &str) {
        let at = self.at(second);
        self.monitor.take(ServerSample::parse(answer, at, Duration::from_micros(120)));
    }

    fn at(&self, second: u64) -> Instant {
        self.start + Duration::from_secs(second)
    }

    fn drawn(&self, second: u64, width: usize, height: usize) -> String {
        let canvas = draw(&self.monitor, self.at(second), width, height);
        assert_eq!((canvas.width(), canvas.height()), (width, height));
        canvas.text()
    }
}

fn row<'t>(text: &'t str, name: &str) -> &'t str {
    text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in\n{text}"))
}

/// The figures of a row: what is behind its name and its bar.
fn figures<'t>(text: &'t str, name: &str) -> Vec<&'t str> {
    let row = row(text, name).strip_prefix(name).unwrap();
    row.rsplit(']').next().unwrap().split("  ").map(str::trim).filter(|part| !part.is_empty()).collect()
}

#[test]
fn a_usual_terminal_shows_all_that_matters() {
    let text = Scene::of(&[BEFORE, &after()]).drawn(4, 80, 24);
    let expected = "\
hedgerow 0.1.0  127.0.0.1:6379  up 3d 4h  every 2s
clients  12  memory 32.0M  peak 48.0M  resident 128M  rows 136k  tables 2
store    tiered:./hedgerow-data  durability interval:1s
── rates, and the mean time of a command in the server ─────────────────────────
commands  81.5k/s
reads     50.0k/s     4.5us
writes    31.0k/s    12.0us
network  in 1.00M/s  out 0B/s  connections 0/s  errors 0/s
ping        120us  median 120us  p99 120us  worst 120us                       ██
busiest  hset 31.0k/s 12.0us  hget 50.0k/s 4.5us  info 1.0/s 200us
── levels ──────────────────────────────────────────────────────────────────────
index    [███████████████████·]   94%  960K of 1.00M  finds groups 256K
groups   [█···················]    5%  3.00M  keys 115k  groups 3
log      [██████████▓▓▓░······]   69%  44.0M of 64.0M  live 32.0M  file 63.0M
sorted   [████████▓▓··········]   50%  5.00M of 10.0M  rows 133k  runs 4
cache    [█████···············]   25%  1.00M of 4.00M  hits 75%  rows 500
── still to do, and how fast it goes ───────────────────────────────────────────
gc       obsolete 8.00M 20%  segments 12/s  copied 0B/s  chains merged 0/s
moves    to move 2.00M  records 25.0k/s  out of the log 0B/s
merges   garbage 250B  slices 0/s  written 0B/s
throttle 5.6us a KiB  writers slept 450us/s
syncs    not durable 1.50k writes  syncs 0/s
waits    clients 1  for space 0/s  for rows on the disk 1.5/s
q quit  p pause  h help  + - interval
";
    assert_eq!(text, expected);
}

#[test]
fn a_small_terminal_shows_what_matters_most() {
    let text = Scene::of(&[BEFORE, &after()]).drawn(4, 40, 10);
    let expected = "\
hedgerow 0.1.0  127.0.0.1:6379  up 3d 4h
commands  81.5k/s
reads     50.0k/s     4.5us
writes    31.0k/s    12.0us
index    [█████████·]   94%  960K
groups   [··········]    5%  3.00M
log      [█████▓░···]   69%  44.0M
sorted   [████▓·····]   50%  5.00M
throttle 5.6us a KiB
q quit  p pause  h help  + - interval
";
    assert_eq!(text, expected);
}

#[test]
fn a_large_terminal_shows_the_rest_and_the_past() {
    let mut scene = Scene::of(&[BEFORE, &after()]);
    scene.take(6, &after());
    let text = scene.drawn(6, 200, 60);
    let commands = row(&text, "commands");
    assert!(commands.ends_with("█▁") && commands.chars().count() == 200, "{commands}");
    let text = Scene::of(&[BEFORE, &after()]).drawn(4, 200, 60);
    assert_eq!(row(&text, "log").matches('█').count(), 24, "half of 48 places is live");
    assert_eq!(figures(&text, "rows")[..2], ["get 81.0k/s", "put 31.0k/s"]);
    assert_eq!(figures(&text, "rows").last(), Some(&"keys found 90%"));
    assert_eq!(figures(&text, "blocks"), ["33%", "8.00M of 24.0M", "hits -", "read 0/s"]);
    assert_eq!(figures(&text, "sealed")[..2], ["looked for 500/s", "leaves a look 1.50"]);
    assert_eq!(figures(&text, "snapshot"), ["oldest none"]);
    let queues = ["groups at most 16", "owed 150%", "runs at most 8", "knobs turned 3 times"];
    assert_eq!(figures(&text, "queues"), queues);
    let of_hset = text.lines().find(|line| line.starts_with("         hset")).unwrap();
    assert!(of_hset.ends_with("37% of the server's time"), "{of_hset}");
    assert_eq!(text.lines().last(), Some("q quit  p pause  h help  + - interval"));
}

#[test]
fn a_terminal_is_told_nothing_by_a_server() {
    let odd = |calls| format!("{BEFORE}cmdstat_\x1b[2J\u{7}\u{4e16}:calls={calls},usec=9\n");
    let text = Scene::of(&[&odd(1), &odd(2)]).drawn(4, 200, 60);
    assert!(figures(&text, "busiest")[0].starts_with("?[2J?? "), "{text}");
    assert!(!text.contains(|letter: char| letter.is_control() && letter != '\n'), "{text}");
}

#[test]
fn numbers_of_no_sense_are_drawn_too() {
    let huge = |name: &str| format!("{name}:18446744073709551615\n");
    let huge = ["live_bytes", "obsolete_bytes", "unused_bytes", "groups_owed_percent"].map(huge).concat();
    let text = Scene::of(&[&format!("{BEFORE}{huge}")]).drawn(0, 200, 60);
    assert_eq!(figures(&text, "gc")[0], "obsolete 16.0E 100%");
    assert!(figures(&text, "log").contains(&"live 16.0E"), "{text}");
}

#[test]
fn the_time_of_exec_is_no_share_of_its_own() {
    let exec = |calls: u64| format!("{BEFORE}cmdstat_exec:calls={calls},usec={}\n", calls * 1000);
    let text = Scene::of(&[&exec(1), &exec(11)]).drawn(4, 200, 60);
    let of_exec = text.lines().find(|line| line.starts_with("         exec")).unwrap();
    assert!(of_exec.trim_end().ends_with("1.00ms"), "{of_exec}");
}

#[test]
fn every_size_is_drawn() {
    let scene = Scene::of(&[BEFORE, &after()]);
    for (width, height) in [(0, 0), (1, 1), (3, 2), (1, 80), (500, 3), (79, 23)] {
        let text = scene.drawn(4, width, height);
        assert_eq!(text.lines().count(), height);
        assert!(text.lines().all(|line| line.chars().count() <= width));
    }
}

#[test]
fn what_a_server_does_not_tell_is_a_dash_and_not_a_zero() {
    for (what, scene) in [("nothing", Scene::of(&["", ""])), ("no answer", Scene::new())] {
        let text = scene.drawn(4, 200, 60);
        let of_figures = text.replace("127.0.0.1:6379", "").replace("p99", "");
        let of_figures = of_figures.replace("every 2s", "").replace("120us", "");
        assert!(!of_figures.contains(|letter: char| letter.is_ascii_digit()), "{what}:\n{text}");
        assert!(text.starts_with("hedgerow -  127.0.0.1:6379  up -"), "{what}:\n{text}");
    }
    let text = Scene::of(&["", ""]).drawn(4, 200, 60);
    assert_eq!(figures(&text, "commands"), ["-"]);
    assert_eq!(figures(&text, "reads"), ["-", "-"]);
    assert_eq!(figures(&text, "index"), ["-", "- of -", "finds groups -"]);
    assert_eq!(figures(&text, "log"), ["-", "- of -", "live -", "file -"]);
    assert_eq!(figures(&text, "sorted"), ["-", "- of -", "rows -", "runs -"]);
    assert_eq!(figures(&text, "cache"), ["-", "- of -", "-", "rows -"]);
    assert_eq!(figures(&text, "throttle"), ["-", "writers slept -"]);
    assert_eq!(figures(&text, "snapshot"), ["oldest -"]);
    assert_eq!(
        figures(&text, "queues"),
        ["groups at most -", "owed -", "runs at most -", "knobs turned - times"]
    );
    assert_eq!(figures(&text, "busiest"), ["-"]);
    assert!(row(&text, "index").contains(&format!("[{}]", " ".repeat(48))), "{text}");
}

#[test]
fn one_answer_has_gauges_and_no_rates() {
    let text = Scene::of(&[BEFORE]).drawn(0, 100, 60);
    assert_eq!(figures(&text, "commands"), ["-"]);
    assert_eq!(figures(&text, "index")[..2], ["94%", "960K of 1.00M"]);
    assert_eq!(figures(&text, "moves")[..2], ["to move 2.00M", "records -"]);
}

#[test]
fn levels_without_limit_have_no_part_of_one() {
    let unbounded = BEFORE
        .replace("maxmemory:67108864", "maxmemory:0")
        .replace("fast_tier_bytes_max:67108864", "fast_tier_bytes_max:1099511627776")
        .replace("sorted_bytes_max:10485760", "sorted_bytes_max:18446744073709551615")
        .replace("cache_active:1", "cache_active:0");
    let text = Scene::of(&[&unbounded]).drawn(0, 100, 60);
    assert_eq!(figures(&text, "log")[..2], ["44.0M without limit", "live 32.0M"]);
    assert_eq!(figures(&text, "sorted")[..2], ["5.00M without limit", "rows 133k"]);
    // The bar is then the file as it is, and all there is of sorted tables.
    assert!(row(&text, "log").contains("[█████████████▓▓▓░·"), "{text}");
    assert_eq!(row(&text, "sorted").matches('█').count(), 19);
    assert!(figures(&text, "cache").contains(&"bypassed"));
}

#[test]
fn a_server_that_is_gone_is_told_and_its_last_figures_stay() {
    let mut scene = Scene::of(&[BEFORE, &after()]);
    scene.monitor.miss("no connection to 127.0.0.1:6379: refused".into(), scene.at(4));
    let text = scene.drawn(71, 80, 24);
    let told = text.lines().nth(1).unwrap();
    assert_eq!(told, "no answer for 1m 7s, trying again: no connection to 127.0.0.1:6379: refused");
    assert_eq!(figures(&text, "commands"), ["-"]);
    assert_eq!(figures(&text, "index")[0], "94%");
    assert!(scene.drawn(71, 40, 10).lines().nth(1).unwrap().starts_with("no answer for 1m 7s, trying again"));
}

#[test]
fn failures_of_the_server_stand_above_all_else() {
    let failing = format!("{BEFORE}write_failure:fsync: I/O error\nmove_failure:capacity is full\n")
        .replace("segments_quarantined:0", "segments_quarantined:2");
    let text = Scene::of(&[&failing]).drawn(0, 80, 24);
    let rows: Vec<&str> = text.lines().take(3).collect();
    assert_eq!(
        rows[1..],
        ["takes no more writes: fsync: I/O error", "the last move failed: capacity is full"]
    );
    assert_eq!(figures(&Scene::of(&[&failing]).drawn(0, 120, 60), "gc").last(), Some(&"2 quarantined"));
}

#[test]
fn pauses_late_answers_and_help_are_shown() {
    let mut scene = Scene::of(&[BEFORE, &after()]);
    assert!(scene.drawn(8, 80, 24).contains("6379  up 3d 4h  every 2s"));
    assert!(scene.drawn(9, 80, 24).contains("6379  7s old  up 3d 4h"));
    scene.monitor.toggle_pause();
    assert!(scene.drawn(9, 80, 24).contains("6379  paused  up 3d 4h"));
    scene.monitor.toggle_help();
    let text = scene.drawn(9, 80, 24);
    assert!(text.contains("quits; so do Esc and Ctrl-C") && text.contains("sealed keys"), "{text}");
    assert!(!text.contains("levels"), "{text}");
}

#[test]
fn the_text_has_every_row_and_no_keys() {
    let scene = Scene::of(&[BEFORE, &after()]);
    let text = text(&scene.monitor, scene.at(4), 100);
    for name in ["clients", "commands", "ping", "index", "sealed", "gc", "waits", "snapshot"] {
        assert!(text.lines().any(|line| line.starts_with(name)), "{name}:\n{text}");
    }
    assert!(!text.contains("q quit"), "{text}");
}
