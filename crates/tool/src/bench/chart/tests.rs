//! The charts, to the letter and by their rules.

use super::*;

fn tiny() -> Chart {
    Chart {
        title: "reads & writes".into(),
        x_label: "workload".into(),
        across: Across::Names(vec!["A".into(), "B".into()]),
        y_label: "throughput (operations/s)".into(),
        unit: Unit::Rate,
        scale: Scale::Linear,
        shape: Shape::Bars,
        series: vec![
            Series::over_names("rows", [Some(100_000.0), Some(200_000.0)]),
            Series::over_names("flat", [Some(50_000.0), None]),
        ],
        marks: vec![],
        width: 276,
        height: 196,
    }
}

#[test]
fn a_tiny_chart_to_the_letter() {
    let golden = include_str!("golden.svg");
    assert_eq!(tiny().svg(), golden);
}

#[test]
fn text_cannot_break_out() {
    assert_eq!(escape("a<b> & \"c\" 'd'"), "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;");
    assert_eq!(escape("bell\u{7}"), "bell\u{FFFD}");
    let bad = "</svg><script>\"'&".to_string();
    let mut chart = tiny();
    (chart.title, chart.x_label, chart.y_label) = (bad.clone(), bad.clone(), bad.clone());
    chart.across = Across::Names(vec![bad.clone(), bad.clone()]);
    chart.series[0].name = bad.clone();
    chart.marks = vec![Mark { x: 0.0, text: bad.clone() }];
    for shape in [Shape::Bars, Shape::Lines] {
        let svg = Chart { shape, ..chart.clone() }.svg();
        assert!(!svg.contains("<script") && svg.matches("</svg>").count() == 1, "{svg}");
    }
}

#[test]
fn every_point_can_be_hovered_over() {
    for shape in [Shape::Bars, Shape::Lines, Shape::Dots] {
        let svg = Chart { shape, ..tiny() }.svg();
        assert_eq!(svg.contains("<polyline"), shape == Shape::Lines);
        assert_eq!(svg.matches("<title>").count(), 3, "{svg}");
        assert!(svg.contains("<title>B \u{b7} rows: 200k</title>"), "{svg}");
    }
}

#[test]
fn ticks_are_round_and_reach_around() {
    assert_eq!(linear_ticks(100.0), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
    assert_eq!(linear_ticks(101.0), [0.0, 50.0, 100.0, 150.0]);
    assert_eq!(linear_ticks(0.0), linear_ticks(1.0));
    assert_eq!(log_ticks([0.3, 2_000.0].into_iter()), [0.1, 1.0, 10.0, 100.0, 1_000.0, 10_000.0]);
    assert_eq!(log_ticks([15.0, 40.0].into_iter()), [10.0, 20.0, 50.0]);
    assert_eq!(log_ticks([10.0].into_iter()), [10.0, 20.0]);
    for most in [0.37, 7.0, 99.0, 12_345.0, 9.9e8] {
        let ticks = linear_ticks(most);
        assert!(
            (3..=8).contains(&ticks.len()) && ticks[ticks.len() - 1] >= most * 0.999,
            "{most}: {ticks:?}"
        );
    }
}

#[test]
fn charts_of_nothing_are_charts() {
    for scale in [Scale::Linear, Scale::Log] {
        let mut chart = Chart { scale, ..tiny() };
        chart.series = vec![Series { name: "none".into(), points: vec![] }];
        chart.across = Across::Numbers(Unit::Seconds);
        assert!(!chart.svg().contains("NaN"));
        chart.series[0].points = vec![Point::new(0.0, f64::NAN), Point::new(1.0, 0.0)];
        for shape in [Shape::Bars, Shape::Lines] {
            assert!(!Chart { shape, ..chart.clone() }.svg().contains("NaN"));
        }
    }
}

#[test]
fn numbers_for_people() {
    let shown = [Unit::Bytes.show(64.0), Unit::Bytes.show(16_384.0), Unit::Bytes.show(2.5e6)];
    assert_eq!(shown, ["64 B", "16.38 KB", "2.5 MB"]);
    assert_eq!([Unit::Times.show(2.2), Unit::Seconds.show(0.5)], ["2.20x", "0.5 s"]);
    assert_eq!([Unit::Rate.tick(250_000.0), Unit::Rate.tick(1.5e6)], ["250k", "1.5M"]);
    assert_eq!([Unit::Microseconds.tick(0.5), Unit::Microseconds.tick(2e4)], ["0.5 us", "20 ms"]);
}

#[test]
fn what_several_rounds_gave_has_a_whisker() {
    for shape in [Shape::Bars, Shape::Lines, Shape::Dots] {
        let mut chart = Chart { shape, ..tiny() };
        chart.series[0].points[1].spread = Some([150_000.0, 410_000.0]);
        let svg = chart.svg();
        assert_eq!(svg.matches("class=\"spread\"").count(), 1, "{svg}");
        assert!(svg.contains("B \u{b7} rows: 200k, 150k to 410k in several rounds"), "{svg}");
        assert!(svg.contains(">500k<"), "the axis reaches the most: {svg}");
    }
}
