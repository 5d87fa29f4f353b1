//! How long values are.
//!
//! Owns how the command line says it, and the draw. Promises that a size that is drawn is between the least and the greatest that were promised. Must not know what is in a value.

use std::fmt;
use std::str::FromStr;

use hedgerow_device::Random;

/// The least that a value has: what it says of itself.
pub(super) const VALUE_BYTES_MIN: usize = 24;

/// Sizes of values, in bytes.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ValueSizes {
    /// All alike: `100`.
    Fixed(usize),
    /// All between two alike often, these among them: `uniform:24-4096`.
    Uniform(usize, usize),
    /// About a mean, with a standard deviation; what would be more than four of them away is drawn as four: `normal:1000,200`.
    Normal(f64, f64),
    /// Some sizes, each as often as its share says: `100x50,4096x50`.
    Shares(Vec<(usize, u64)>),
}

impl FromStr for ValueSizes {
    type Err = String;

    fn from_str(text: &str) -> Result<ValueSizes, String> {
        let sizes = parsed(text).ok_or_else(|| {
            format!("'{text}' says no sizes: give 100, uniform:24-4096, normal:MEAN,DEVIATION or SIZExSHARE,SIZExSHARE")
        })?;
        if sizes.least() < VALUE_BYTES_MIN {
            return Err(format!(
                "a value has {VALUE_BYTES_MIN} bytes at least, which say whose it is, and '{text}' may have less"
            ));
        }
        Ok(sizes)
    }
}

fn parsed(text: &str) -> Option<ValueSizes> {
    if let Some(bounds) = text.strip_prefix("uniform:") {
        let (least, most) = bounds.split_once('-')?;
        let (least, most) = (least.parse().ok()?, most.parse().ok()?);
        return (least <= most).then_some(ValueSizes::Uniform(least, most));
    }
    if let Some(numbers) = text.strip_prefix("normal:") {
        let (mean, deviation) = numbers.split_once(',')?;
        let (mean, deviation): (f64, f64) = (mean.parse().ok()?, deviation.parse().ok()?);
        let is_some = mean.is_finite() && deviation.is_finite() && deviation >= 0.0 && mean >= 0.0;
        return is_some.then_some(ValueSizes::Normal(mean, deviation));
    }
    if text.contains('x') {
        let share = |part: &str| {
            let (size, share) = part.split_once('x')?;
            Some((size.parse().ok()?, share.parse::<u32>().ok()?.into()))
        };
        let shares: Vec<(usize, u64)> = text.split(',').map(share).collect::<Option<_>>()?;
        return shares.iter().any(|&(_, share)| share > 0).then_some(ValueSizes::Shares(shares));
    }
    Some(ValueSizes::Fixed(text.parse().ok()?))
}

/// As it is given.
impl fmt::Display for ValueSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueSizes::Fixed(bytes) => write!(f, "{bytes}"),
            ValueSizes::Uniform(least, most) => write!(f, "uniform:{least}-{most}"),
            ValueSizes::Normal(mean, deviation) => write!(f, "normal:{mean},{deviation}"),
            ValueSizes::Shares(shares) => {
                let parts: Vec<String> =
                    shares.iter().map(|(size, share)| format!("{size}x{share}")).collect();
                f.write_str(&parts.join(","))
            }
        }
    }
}

impl ValueSizes {
    /// No value is shorter.
    pub(super) fn least(&self) -> usize {
        match self {
            ValueSizes::Fixed(bytes) | ValueSizes::Uniform(bytes, _) => *bytes,
            ValueSizes::Normal(mean, deviation) => (mean - 4.0 * deviation).max(0.0) as usize,
            ValueSizes::Shares(shares) => shares.iter().map(|&(size, _)| size).min().unwrap_or(0),
        }
    }

    /// No value is longer.
    pub(super) fn most(&self) -> usize {
        match self {
            ValueSizes::Fixed(bytes) | ValueSizes::Uniform(_, bytes) => *bytes,
            ValueSizes::Normal(mean, deviation) => (mean + 4.0 * deviation) as usize,
            ValueSizes::Shares(shares) => shares.iter().map(|&(size, _)| size).max().unwrap_or(0),
        }
    }

    /// On average.
    pub(super) fn mean(&self) -> f64 {
        match self {
            ValueSizes::Fixed(bytes) => *bytes as f64,
            ValueSizes::Uniform(least, most) => (least + most) as f64 / 2.0,
            ValueSizes::Normal(mean, _) => *mean,
            ValueSizes::Shares(shares) => {
                let all: u64 = shares.iter().map(|&(_, share)| share).sum();
                let weighed: f64 = shares.iter().map(|&(size, share)| size as f64 * share as f64).sum();
                weighed / all.max(1) as f64
            }
        }
    }

    /// The next one.
    pub(super) fn draw(&self, random: &mut Random) -> usize {
        match self {
            ValueSizes::Fixed(bytes) => *bytes,
            ValueSizes::Uniform(least, most) => least + random.below((most - least) as u64 + 1) as usize,
            ValueSizes::Normal(mean, deviation) => {
                // Box and Muller 1958; 1 - unit() is never 0.
                let radius = (-2.0 * (1.0 - random.unit()).ln()).sqrt();
                let drawn = mean + deviation * radius * (std::f64::consts::TAU * random.unit()).cos();
                (drawn as usize).clamp(self.least(), self.most())
            }
            ValueSizes::Shares(shares) => {
                let all = shares.iter().map(|&(_, share)| share).sum();
                let mut left = random.below(all);
                for &(size, share) in shares {
                    if left < share {
                        return size;
                    }
                    left -= share;
                }
                self.most()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_bad_ones_are_refused() {
        for text in ["100", "uniform:24-4096", "normal:1000,200", "100x50,4096x30,24x20"] {
            assert_eq!(text.parse::<ValueSizes>().unwrap().to_string(), text);
        }
        for bad in [
            "",
            "x",
            "uniform:9",
            "uniform:50-40",
            "normal:a,1",
            "normal:100,-1",
            "normal:NaN,1",
            "100x0",
            "100xa",
        ] {
            assert!(bad.parse::<ValueSizes>().unwrap_err().contains("says no sizes"), "{bad}");
        }
        for short in ["23", "uniform:0-50", "normal:100,50", "100x1,8x1"] {
            assert!(short.parse::<ValueSizes>().unwrap_err().contains("24 bytes at least"), "{short}");
        }
    }

    #[test]
    fn sizes_keep_their_bounds_and_their_mean() {
        let mut random = Random::from_seed(1);
        for text in ["100", "uniform:24-4096", "normal:1000,200", "100x50,4096x30,24x20"] {
            let sizes: ValueSizes = text.parse().unwrap();
            let drawn: Vec<usize> = (0..50_000).map(|_| sizes.draw(&mut random)).collect();
            assert!(drawn.iter().all(|size| (sizes.least()..=sizes.most()).contains(size)), "{text}");
            let mean = drawn.iter().sum::<usize>() as f64 / drawn.len() as f64;
            assert!((mean / sizes.mean() - 1.0).abs() < 0.02, "{text}: {mean}");
        }
        let shares: ValueSizes = "100x3,200x1".parse().unwrap();
        let short = (0..40_000).filter(|_| shares.draw(&mut random) == 100).count();
        assert!((29_000..31_000).contains(&short), "{short}");
    }
}
