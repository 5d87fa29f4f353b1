//! Namespaces: key spaces of a device that NVMe commands are carried out on.
//!
//! Owns which namespace is which key space, and what each command does there. Promises that every entry gets a completion, and that no byte of the data is touched but those that the completion tells of. Must
//! not know where the data pointer points: the data is given.

use super::status::{NvmeCompletion, NvmeStatus};
use super::{
    COMMAND_BYTES, LIST_HEAD_BYTES, NVME_KEY_BYTES_MAX, NvmeAction, NvmeCommand, NvmeKey, StoreOptions,
    push_key,
};
use crate::code::{KvError, Result};
use crate::command::{
    KvAnswer, KvCommand, LIST_KEYS_MAX, PairKey, SPACES_MAX, SpaceId, SpacePlace, StoreMode,
};
use crate::host::{Host, HostRequest, QueueId};

/// The least bytes of a key in a list.
const LIST_ENTRY_BYTES_MIN: usize = 4;

/// Namespaces over one host, with a queue of their own, one command at a time.
///
/// ```
/// use hedgerow_device::{FastTier, FastTierOptions};
/// use hedgerow_kvssd::{
///     DataPointer, Device, DeviceOptions, Geometry, Host, NvmeAction, NvmeCommand, NvmeKey, NvmeNamespaces, NvmeStatus,
///     StoreOptions,
/// };
///
/// let tier = FastTier::dram(&FastTierOptions::default())?;
/// let geometry = Geometry { page_bytes: 4096, block_bytes: 64 << 10, blocks: 16 };
/// let mut host = Host::new(Device::format(tier, geometry, DeviceOptions::default())?);
/// let queue = host.open_queue(1, 0);
/// let space = host.create_space(queue, b"one", 0)?;
/// let mut namespaces = NvmeNamespaces::new(&mut host);
/// namespaces.attach(1, space)?;
/// let key = NvmeKey::new(b"key").unwrap();
/// let action = NvmeAction::Store { key, value_bytes: 5, options: StoreOptions::default() };
/// let command = NvmeCommand { command_id: 7, namespace: 1, data: DataPointer::Prp(0, 0), action };
/// let completion = namespaces.execute(&mut host, &command.encode(), &mut b"value".to_vec());
/// assert_eq!((completion.command_id, completion.status), (7, NvmeStatus::SUCCESS));
/// # Ok::<(), hedgerow_kvssd::KvError>(())
/// ```
#[derive(Debug)]
pub struct NvmeNamespaces {
    queue: QueueId,
    value_bytes_max: usize,
    attached: Vec<(u32, SpaceId)>,
    is_missing_delete_refused: bool,
    unreadable: u64,
}

impl NvmeNamespaces {
    /// None yet, over this host. Sets memory aside for one value of the greatest size.
    pub fn new(host: &mut Host) -> NvmeNamespaces {
        let value_bytes_max = host.device().geometry().value_bytes_max() as usize;
        let queue = host.open_queue(1, value_bytes_max);
        NvmeNamespaces {
            queue,
            value_bytes_max,
            attached: Vec::new(),
            is_missing_delete_refused: false,
            unreadable: 0,
        }
    }

    /// Has a namespace be a key space.
    ///
    /// # Errors
    /// [`KvError::Param`]: 0 and FFFFFFFFh are no namespaces, or it is one already. [`KvError::SpacesMax`].
    pub fn attach(&mut self, namespace: u32, space: SpaceId) -> Result<()> {
        if namespace == 0 || namespace == u32::MAX {
            return Err(KvError::Param { what: "a namespace has a number from 1 to FFFFFFFEh" });
        }
        if self.space_of(namespace).is_some() {
            return Err(KvError::Param { what: "there is a namespace of this number" });
        }
        if self.attached.len() == SPACES_MAX {
            return Err(KvError::SpacesMax { max: SPACES_MAX });
        }
        self.attached.push((namespace, space));
        Ok(())
    }

    /// Whether the deletion of a key that is not there is refused: bit 0 (EDNEK) of the standard's feature 20h. Default: it is a success.
    pub fn set_missing_delete_refused(&mut self, is_refused: bool) {
        self.is_missing_delete_refused = is_refused;
    }

    /// How often lists passed over what cannot be read: their completions have no place to say it.
    pub fn unreadable(&self) -> u64 {
        self.unreadable
    }

    fn space_of(&self, namespace: u32) -> Option<SpaceId> {
        self.attached.iter().find(|attached| attached.0 == namespace).map(|attached| attached.1)
    }

    /// Carries the command of a submission queue entry out. `data` is what its data pointer points to: a Store reads from its beginning, a Retrieve and a List write there.
    pub fn execute(
        &mut self,
        host: &mut Host,
        entry: &[u8; COMMAND_BYTES],
        data: &mut [u8],
    ) -> NvmeCompletion {
        let command_id = u16::from_le_bytes([entry[2], entry[3]]);
        let ended = match NvmeCommand::decode(entry) {
            Ok(command) => self.carry_out(host, &command, entry[0], data),
            Err(error) => Err(error.into()),
        };
        match ended {
            Ok(result) => NvmeCompletion::new(command_id, NvmeStatus::SUCCESS, result),
            Err(status) => NvmeCompletion::new(command_id, status, 0),
        }
    }

    fn carry_out(
        &mut self,
        host: &mut Host,
        command: &NvmeCommand,
        opcode: u8,
        data: &mut [u8],
    ) -> std::result::Result<u32, NvmeStatus> {
        let space = self.space_of(command.namespace).ok_or(NvmeStatus::INVALID_NAMESPACE)?;
        let data_of = |bytes: u32| usize::try_from(bytes).ok().filter(|&bytes| bytes <= data.len());
        let ended = match command.action {
            NvmeAction::Flush => host.call(self.queue, HostRequest::Other(KvCommand::Flush)).map(|_| 0),
            NvmeAction::Store { key, value_bytes, options } => {
                // Too long for the device says more than too long for the data.
                if value_bytes as usize > self.value_bytes_max {
                    return Err(NvmeStatus::INVALID_VALUE_SIZE);
                }
                let bytes = data_of(value_bytes).ok_or(NvmeStatus::DATA_LENGTH_INVALID)?;
                self.store(host, space, &key, options, &data[..bytes])
            }
            NvmeAction::Retrieve { key, buffer_bytes, .. } => {
                let bytes = data_of(buffer_bytes).ok_or(NvmeStatus::DATA_LENGTH_INVALID)?;
                self.retrieve(host, space, &key, &mut data[..bytes])
            }
            NvmeAction::List { from, buffer_bytes } => {
                let bytes = data_of(buffer_bytes).ok_or(NvmeStatus::DATA_LENGTH_INVALID)?;
                if bytes < LIST_HEAD_BYTES {
                    return Err(NvmeStatus::INVALID_FIELD);
                }
                self.list(host, space, from, &mut data[..bytes])
            }
            NvmeAction::Delete { key } => PairKey::new(key.bytes()).and_then(|key| {
                let delete = KvCommand::Delete { space, key, must_exist: self.is_missing_delete_refused };
                host.call(self.queue, HostRequest::Other(delete)).map(|_| 0)
            }),
            NvmeAction::Exist { key } => match self.is_there(host, space, &key) {
                Ok(true) => Ok(0),
                Ok(false) => Err(KvError::KeyMissing),
                Err(error) => Err(error),
            },
        };
        ended.map_err(|error| NvmeStatus::of_error(&error, opcode))
    }

    fn is_there(&self, host: &mut Host, space: SpaceId, key: &NvmeKey) -> Result<bool> {
        let exist = KvCommand::Exist { space, keys: vec![PairKey::new(key.bytes())?] };
        let answer = host.call(self.queue, HostRequest::Other(exist))?;
        Ok(matches!(answer, KvAnswer::Exist(bits) if bits.first().is_some_and(|bits| bits & 1 != 0)))
    }

    fn store(
        &self,
        host: &mut Host,
        space: SpaceId,
        key: &NvmeKey,
        options: StoreOptions,
        value: &[u8],
    ) -> Result<u32> {
        let mode = match (options.only_if_present, options.only_if_absent) {
            (false, false) => StoreMode::Post,
            (true, false) => StoreMode::UpdateOnly,
            (false, true) => StoreMode::NoOverwrite,
            (true, true) if self.is_there(host, space, key)? => return Err(KvError::KeyExists),
            (true, true) => return Err(KvError::KeyMissing),
        };
        host.call(self.queue, HostRequest::Store { space, key: key.bytes(), value, mode }).map(|_| 0)
    }

    /// Bytes of the whole value.
    fn retrieve(&self, host: &mut Host, space: SpaceId, key: &NvmeKey, buffer: &mut [u8]) -> Result<u32> {
        let bytes = buffer.len().min(self.value_bytes_max);
        let request = HostRequest::Retrieve { space, key: key.bytes(), offset: 0, bytes, delete: false };
        let ticket = host.start(self.queue, request)?;
        host.wait(self.queue, ticket, |result, read| {
            let value_bytes = match result {
                Ok(KvAnswer::Retrieved { value_bytes }) => value_bytes,
                Err(KvError::BufferSmall { needed, .. }) => needed,
                Ok(_) => 0,
                Err(error) => return Err(error),
            };
            buffer[..read.len()].copy_from_slice(read);
            Ok(value_bytes as u32)
        })?
    }

    /// Keys that no command of the standard can name are passed over.
    fn list(
        &mut self,
        host: &mut Host,
        space: SpaceId,
        from: Option<NvmeKey>,
        buffer: &mut [u8],
    ) -> Result<u32> {
        let mut next = Some(match from {
            Some(key) => SpacePlace::Key(PairKey::new(key.bytes())?),
            None => SpacePlace::START,
        });
        let (mut list, most) = (vec![0; LIST_HEAD_BYTES], buffer.len());
        'list: while let Some(from) = next.take() {
            let keys = ((most - list.len()) / LIST_ENTRY_BYTES_MIN).clamp(1, LIST_KEYS_MAX);
            let command = KvCommand::ListFrom { space, from, keys };
            let KvAnswer::KeysFrom { keys, unreadable, next: behind } =
                host.call(self.queue, HostRequest::Other(command))?
            else {
                break;
            };
            self.unreadable += u64::from(unreadable);
            for key in keys.iter().map(PairKey::bytes).filter(|key| key.len() <= NVME_KEY_BYTES_MAX) {
                if !push_key(&mut list, key, most) {
                    break 'list;
                }
            }
            next = behind.filter(|_| list.len() + LIST_ENTRY_BYTES_MIN <= most);
        }
        buffer[..list.len()].copy_from_slice(&list);
        Ok(0)
    }
}
