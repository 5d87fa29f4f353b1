//! The machine and its threads.
//!
//! Owns the boot's identity and the one door through which threads are started.

use std::io;
use std::sync::OnceLock;
use std::thread::{Builder, JoinHandle};

/// Tells this boot of the machine from every other; 0 where it is unknown.
///
/// A store that finds the boot id it wrote was left by a killed process: the page cache still has every store. Another id
/// means a power cut or a reboot: only what was persisted is sure.
pub fn boot_id() -> u128 {
    static BOOT: OnceLock<u128> = OnceLock::new();
    *BOOT.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        parse_boot_id(&text)
    })
}

fn parse_boot_id(text: &str) -> u128 {
    let digits: String = text.trim().chars().filter(|&c| c != '-').collect();
    u128::from_str_radix(&digits, 16).unwrap_or(0)
}

/// Starts a thread called `name` (the kernel keeps the first 15 bytes).
///
/// # Errors
/// The operating system may refuse another thread.
pub fn spawn(name: &str, f: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name.to_owned()).spawn(f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_id_is_read_as_one_number() {
        let id = parse_boot_id("0f0e0d0c-0b0a-0908-0706-050403020100\n");
        assert_eq!(id, 0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100);
        assert_eq!(parse_boot_id("nonsense"), 0);
        assert_ne!(boot_id(), 0, "Linux has a boot id");
        assert_eq!(boot_id(), boot_id());
    }

    #[test]
    fn threads_carry_their_name() {
        let (send, receive) = std::sync::mpsc::channel();
        let thread = spawn("seal", move || {
            send.send(std::thread::current().name().map(str::to_owned)).unwrap();
        });
        thread.unwrap().join().unwrap();
        assert_eq!(receive.recv().unwrap().as_deref(), Some("seal"));
    }
}
