//! Windows, at times that the tests make up.

use super::*;

const LENGTH: Duration = Duration::from_millis(50);

fn at_ms(start: Instant, ms: u64) -> Instant {
    start + Duration::from_millis(ms)
}

/// A thread whose operations end at these times after `start`, each one begun when the one before had ended.
fn result(start: Instant, ends_ms: impl Iterator<Item = u64>) -> ThreadResult {
    let mut cutter = Cutter::new(start, LENGTH).unwrap();
    let (mut latencies, mut operations, mut before) = (new_histogram().unwrap(), 0, start);
    for end in ends_ms.map(|ms| at_ms(start, ms)) {
        if end >= cutter.end {
            cutter.cut(end, &mut latencies).unwrap();
        }
        latencies.saturating_record((end - before).as_nanos() as u64);
        (before, operations) = (end, operations + 1);
    }
    let (windows, latencies) = cutter.finish(latencies).unwrap();
    ThreadResult { operations, latencies, windows, start, end: before }
}

/// How many operations each window holds.
fn counts(windows: &[Window], elapsed: Duration) -> Vec<u64> {
    let count = |window: &Window| {
        let seconds = LENGTH.as_secs_f64().min(elapsed.as_secs_f64() - window.from_s);
        assert!((window.length_s - seconds).abs() < 1e-9, "{window:?}");
        (window.ops_per_s * seconds).round() as u64
    };
    windows.iter().map(count).collect()
}

#[test]
fn windows_hold_every_operation() {
    let start = Instant::now();
    // One operation each ms; the second thread comes to a stop for longer than two windows.
    let results = [result(start, 1..=330), result(start, (1..=90).chain(230..=330))];
    let elapsed = Duration::from_millis(330);
    let windows = windows(&results, &PhaseCourse::new(LENGTH), LENGTH, elapsed).unwrap();
    // What ends just where a window does is part of the next one.
    let (alone, both) = ([49, 50, 50, 50, 50, 50, 31], [49, 41, 0, 0, 20, 50, 31]);
    let expected: Vec<u64> = alone.iter().zip(both).map(|(one, other)| one + other).collect();
    assert_eq!(counts(&windows, elapsed), expected);
    assert_eq!(expected.iter().sum::<u64>(), results.iter().map(|result| result.operations).sum::<u64>());
    for (at, window) in windows.iter().enumerate() {
        assert!((window.from_s - 0.05 * at as f64).abs() < 1e-9, "{window:?}");
        assert!((999.0..1001.0).contains(&window.p50_us), "{window:?}");
        // The stop counts where it ended: 140 ms.
        let longest = if at == 4 { 140_000.0 } else { 1_000.0 };
        assert!((window.max_us / longest - 1.0).abs() < 0.002, "{window:?}");
        assert!(window.p50_us <= window.p99_us && window.p99_us <= window.max_us, "{window:?}");
    }
    let all: u64 = results.iter().map(|result| result.latencies.len()).sum();
    assert_eq!(all, 330 + 191);
}

#[test]
fn a_last_window_of_less_than_half_is_left_out() {
    let start = Instant::now();
    for (end, count, last) in [(324, 6, 50), (326, 7, 27), (20, 1, 20)] {
        let results = [result(start, 1..=end)];
        let elapsed = Duration::from_millis(end);
        let windows = windows(&results, &PhaseCourse::new(LENGTH), LENGTH, elapsed).unwrap();
        let counts = counts(&windows, elapsed);
        assert_eq!((counts.len(), counts.last()), (count, Some(&last)), "{end} ms");
    }
}

#[test]
fn windows_in_which_nobody_did_anything_are_empty() {
    let start = Instant::now();
    let results = [result(start, [10, 120].into_iter())];
    let windows = windows(&results, &PhaseCourse::new(LENGTH), LENGTH, Duration::from_millis(150)).unwrap();
    assert_eq!(windows[1].ops_per_s, 0.0);
    assert_eq!((windows[1].p50_us, windows[1].max_us), (0.0, 0.0));
}
