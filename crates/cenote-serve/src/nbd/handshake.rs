//! Selection of an export: options are answered until the client has selected one, or disconnects.
//!
//! Earlier options affect later ones: structured replies must be agreed on before contexts, and
//! contexts belong to the export that they were requested for. Options sent before the connection
//! was encrypted are discarded, because another party may have injected them. A client that takes
//! long ([`Negotiation`]), or sends too many options, is disconnected.

use std::sync::Arc;

use cenote_rt::net::{self, Receiver, Sender, Tls};
use cenote_rt::{Error, Kind, Result};

use super::export::{Export, Exports};
use super::negotiation::Negotiation;
use super::options::{
    self, DATA_MAX, HEADER_LEN, InfoRequest, MetaRequest, OptionKind, encode_reply, handshake_flag,
    reply,
};
use super::wire::export_flag;
use super::{CONTEXT, CONTEXT_ID, ClientError, PAYLOAD_MAX};

/// Maximum options per client.
const OPTIONS_MAX: usize = 1024;
/// Longest data of an option that is skipped.
const SKIPPED_MAX: u32 = 1 << 20;
/// Zeros after the answer to `EXPORT_NAME`, unless the client does not want them.
const ZEROES: usize = 124;

/// Kinds of information about an export.
mod info {
    pub(super) const EXPORT: u16 = 0;
    pub(super) const NAME: u16 = 1;
    pub(super) const BLOCK_SIZE: u16 = 3;
}

/// The result of a negotiation.
#[derive(Debug)]
pub(super) struct Agreed {
    pub(super) export: Arc<Export>,
    /// Size at the time of selection: requests may not go beyond.
    pub(super) size: u64,
    /// Whether answers are structured.
    pub(super) is_structured: bool,
    /// Whether the client may query block status.
    pub(super) has_status: bool,
}

/// A negotiation.
struct Handshake<'a> {
    exports: &'a Exports,
    negotiation: &'a Negotiation,
    sender: Sender,
    secrecy: Secrecy,
    has_zeroes: bool,
    is_structured: bool,
    /// The export whose context was requested.
    context_of: Option<String>,
}

/// Whether the connection is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Secrecy {
    /// Not encrypted, and not required.
    None,
    /// Not yet encrypted; nothing is revealed before it is.
    Wanted,
    /// Encrypted.
    Encrypted,
}

/// What follows an option.
enum Next {
    Option,
    /// The client was told to encrypt everything that follows.
    Encrypt,
    Agreed(Agreed),
    End,
}

/// Answers options until an export is selected; `None` if the client disconnects without one. The
/// returned connection may be encrypted.
///
/// # Errors
/// Errors of the socket; `Kind::Invalid` for a client that violates the protocol; `Kind::Limit`
/// for one that takes too long or sends too much.
pub(super) async fn agree(
    exports: &Exports,
    negotiation: &Negotiation,
    tls: Option<&Tls>,
    mut receiver: Receiver,
    sender: Sender,
) -> Result<Option<(Agreed, Receiver, Sender)>> {
    let mut handshake = Handshake {
        exports,
        negotiation,
        sender,
        secrecy: if tls.is_some() { Secrecy::Wanted } else { Secrecy::None },
        has_zeroes: true,
        is_structured: false,
        context_of: None,
    };
    handshake.send(&[&options::greeting()]).await?;
    let mut flags = [0; 4];
    if !negotiation.bound(receiver.fill(&mut flags)).await? {
        return Ok(None);
    }
    let Some(flags) = options::decode_client_flags(flags) else {
        return Err(Error::new(Kind::Invalid, ClientError::Flags));
    };
    handshake.has_zeroes = flags & handshake_flag::NO_ZEROES == 0;
    for _ in 0..OPTIONS_MAX {
        let mut header = [0; HEADER_LEN];
        if !negotiation.bound(receiver.fill(&mut header)).await? {
            return Ok(None);
        }
        let invalid = |error| Error::new(Kind::Invalid, error);
        let (kind, len) = options::decode_header(&header).map_err(invalid)?;
        if len > SKIPPED_MAX {
            return Err(Error::new(Kind::Limit, ClientError::OptionTooLong));
        }
        let mut data = vec![0; len as usize];
        if len > 0 && !negotiation.bound(receiver.fill(&mut data)).await? {
            return Ok(None);
        }
        let next = if len > DATA_MAX {
            handshake.reply(kind, reply::TOO_BIG, b"the option is too long").await?;
            Next::Option
        } else {
            handshake.option(kind, &data).await?
        };
        match (next, tls) {
            (Next::Option, _) => {}
            (Next::Encrypt, Some(tls)) => {
                let encrypting = net::encrypt(receiver, handshake.sender, tls);
                (receiver, handshake.sender) = negotiation.bound(encrypting).await?;
                handshake.secrecy = Secrecy::Encrypted;
                handshake.is_structured = false;
                handshake.context_of = None;
            }
            (Next::Agreed(agreed), _) => return Ok(Some((agreed, receiver, handshake.sender))),
            (Next::End | Next::Encrypt, _) => return Ok(None),
        }
    }
    Err(Error::new(Kind::Limit, ClientError::TooManyOptions))
}

impl Handshake<'_> {
    async fn reply(&mut self, option: OptionKind, kind: u32, data: &[u8]) -> Result<()> {
        self.send(&[&encode_reply(option, kind, data)]).await
    }

    async fn send(&mut self, pieces: &[&[u8]]) -> Result<()> {
        self.negotiation.bound(self.sender.send(pieces)).await
    }

    async fn option(&mut self, kind: OptionKind, data: &[u8]) -> Result<Next> {
        let must_encrypt = self.secrecy == Secrecy::Wanted;
        match kind {
            OptionKind::StartTls => return self.start_tls(data).await,
            // This option has no error answer.
            OptionKind::ExportName if must_encrypt => return Ok(Next::End),
            _ if must_encrypt && kind != OptionKind::Abort => {
                self.reply(kind, reply::TLS_REQUIRED, b"encryption must be started first").await?;
            }
            OptionKind::ExportName => return self.export_name(data).await,
            OptionKind::Go => return self.info(kind, data).await,
            OptionKind::Info => {
                self.info(kind, data).await?;
            }
            OptionKind::Abort => {
                // The client may not wait for it.
                let _ = self.reply(kind, reply::ACK, &[]).await;
                return Ok(Next::End);
            }
            OptionKind::List => self.list(data).await?,
            OptionKind::StructuredReply if data.is_empty() => {
                self.is_structured = true;
                self.reply(kind, reply::ACK, &[]).await?;
            }
            OptionKind::StructuredReply => {
                self.reply(kind, reply::INVALID, b"no data is expected").await?;
            }
            OptionKind::ListMetaContext | OptionKind::SetMetaContext => {
                self.contexts(kind, data).await?;
            }
            OptionKind::Unknown(_) => self.reply(kind, reply::UNSUPPORTED, &[]).await?,
        }
        Ok(Next::Option)
    }

    async fn start_tls(&mut self, data: &[u8]) -> Result<Next> {
        let kind = OptionKind::StartTls;
        let refused: (u32, &[u8]) = match self.secrecy {
            Secrecy::None => (reply::POLICY, b"there is no certificate"),
            Secrecy::Wanted if data.is_empty() => {
                self.reply(kind, reply::ACK, &[]).await?;
                return Ok(Next::Encrypt);
            }
            _ => (reply::INVALID, b"no data is expected, and once only"),
        };
        self.reply(kind, refused.0, refused.1).await?;
        Ok(Next::Option)
    }

    async fn list(&mut self, data: &[u8]) -> Result<()> {
        let kind = OptionKind::List;
        if !data.is_empty() {
            return self.reply(kind, reply::INVALID, b"no data is expected").await;
        }
        // An unreadable pool has no exports.
        for name in self.exports.names().await.unwrap_or_default() {
            let mut data = (name.len() as u32).to_be_bytes().to_vec();
            data.extend(name.as_bytes());
            self.reply(kind, reply::SERVER, &data).await?;
        }
        self.reply(kind, reply::ACK, &[]).await
    }

    /// The old option: it has no error answer.
    async fn export_name(&mut self, data: &[u8]) -> Result<Next> {
        let Ok(name) = options::decode_name(data) else { return Ok(Next::End) };
        let Ok(export) = self.exports.open(&name).await else { return Ok(Next::End) };
        let agreed = self.agreed(&name, export);
        let flags = flags_of(&agreed);
        let zeroes = if self.has_zeroes { &[0; ZEROES][..] } else { &[] };
        let pieces = [&agreed.size.to_be_bytes()[..], &flags.to_be_bytes(), zeroes];
        self.send(&pieces).await?;
        Ok(Next::Agreed(agreed))
    }

    async fn info(&mut self, kind: OptionKind, data: &[u8]) -> Result<Next> {
        let request = match InfoRequest::decode(data) {
            Ok(request) => request,
            Err(error) => {
                self.reply(kind, reply::INVALID, error.to_string().as_bytes()).await?;
                return Ok(Next::Option);
            }
        };
        let export = match self.exports.open(&request.name).await {
            Ok(export) => export,
            Err(error) => {
                self.reply(kind, reply::UNKNOWN, error.to_string().as_bytes()).await?;
                return Ok(Next::Option);
            }
        };
        let agreed = self.agreed(&request.name, export);
        let mut fact = info::EXPORT.to_be_bytes().to_vec();
        fact.extend(agreed.size.to_be_bytes());
        fact.extend(flags_of(&agreed).to_be_bytes());
        self.reply(kind, reply::INFO, &fact).await?;
        if request.wanted.contains(&info::NAME) {
            let mut fact = info::NAME.to_be_bytes().to_vec();
            fact.extend(agreed.export.name().as_bytes());
            self.reply(kind, reply::INFO, &fact).await?;
        }
        // Always sent: any request is allowed, whole blocks are fastest.
        let preferred = agreed.export.block_size().max(4096) as u32;
        let mut fact = info::BLOCK_SIZE.to_be_bytes().to_vec();
        for size in [1, preferred, PAYLOAD_MAX] {
            fact.extend(size.to_be_bytes());
        }
        self.reply(kind, reply::INFO, &fact).await?;
        self.reply(kind, reply::ACK, &[]).await?;
        Ok(Next::Agreed(agreed))
    }

    fn agreed(&self, name: &str, export: Arc<Export>) -> Agreed {
        let has_status = self.is_structured && self.context_of.as_deref() == Some(name);
        Agreed { size: export.size(), export, is_structured: self.is_structured, has_status }
    }

    async fn contexts(&mut self, kind: OptionKind, data: &[u8]) -> Result<()> {
        let is_set = kind == OptionKind::SetMetaContext;
        if is_set {
            self.context_of = None;
        }
        let request = match MetaRequest::decode(data) {
            Ok(request) if self.is_structured => request,
            Ok(_) => {
                let text = b"structured replies must be agreed on first";
                return self.reply(kind, reply::INVALID, text).await;
            }
            Err(error) => {
                return self.reply(kind, reply::INVALID, error.to_string().as_bytes()).await;
            }
        };
        if let Err(error) = self.exports.open(&request.name).await {
            return self.reply(kind, reply::UNKNOWN, error.to_string().as_bytes()).await;
        }
        let names_it = |query: &String| query == CONTEXT || !is_set && query == "base:";
        let lists_all = !is_set && request.queries.is_empty();
        if lists_all || request.queries.iter().any(names_it) {
            let id: u32 = if is_set { CONTEXT_ID } else { 0 };
            let mut data = id.to_be_bytes().to_vec();
            data.extend(CONTEXT.as_bytes());
            self.reply(kind, reply::META_CONTEXT, &data).await?;
            if is_set {
                self.context_of = Some(request.name);
            }
        }
        self.reply(kind, reply::ACK, &[]).await
    }
}

/// Returns the capabilities of an export.
fn flags_of(agreed: &Agreed) -> u16 {
    let mut flags = export_flag::HAS_FLAGS
        | export_flag::FLUSH
        | export_flag::CACHE
        // All connections share one open volume, and a flush covers all of it.
        | export_flag::MULTI_CONN;
    if agreed.is_structured {
        flags |= export_flag::DF;
    }
    flags
        | if agreed.export.is_read_only() {
            export_flag::READ_ONLY
        } else {
            export_flag::FUA
                | export_flag::TRIM
                | export_flag::WRITE_ZEROES
                | export_flag::FAST_ZERO
        }
}
