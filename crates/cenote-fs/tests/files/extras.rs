//! Random histories: attributes of nodes besides names and contents. Owners, modes, ACLs, extended
//! attributes, projects, flags, and the effect of quotas.

use std::collections::{BTreeMap, BTreeSet};

use cenote_fs::Ace;
use cenote_fs::PFlags;
use cenote_fs::access::Credentials;
use cenote_fs::acl::Want;
use cenote_fs::acl::posix::{Entry, PosixAcl, Tag};
use cenote_fs::edit::SetAttributes;
use cenote_fs::edit::xattr::Existing;
use cenote_fs::mount::errno;
use cenote_fs::quota::{Holder, Resource};
use cenote_ondisk::acl::{POSIX_ACCESS, POSIX_DEFAULT};
use cenote_ondisk::zap::Value;
use cenote_rt::Error;

use crate::fixture::root;
use crate::history::{AclType, Action, Pair, Verdict, number, same};
use crate::model::{Body, CAPABILITY, Extra, Id, NAMED, Node, Outcome, Posix, ROOT};

/// Owners with quotas.
const HOLDERS: [Holder; 6] = [
    Holder::User(500),
    Holder::User(1000),
    Holder::Group(100),
    Holder::Group(200),
    Holder::Project(1),
    Holder::Project(2),
];

fn xattr_name(number: u8) -> Vec<u8> {
    match number {
        0 => b"user.a".to_vec(),
        1 => b"user.b".to_vec(),
        2 => b"trusted.c".to_vec(),
        3 => [&b"user."[..], &[b'n'; 200]].concat(),
        4 => b"user.with/slash".to_vec(),
        _ => CAPABILITY.to_vec(),
    }
}

fn encoded(acl: &Posix) -> Vec<u8> {
    let entries = [
        (Tag::Owner, acl.owner),
        (Tag::User(NAMED), acl.user),
        (Tag::Group, acl.group),
        (Tag::Mask, acl.mask),
        (Tag::Other, acl.other),
    ];
    let entries = entries.into_iter().map(|(tag, rwx)| Entry { tag, rwx }).collect();
    PosixAcl::of(entries).unwrap().encode()
}

/// Returns an NFSv4 ACL that allows this to owner, [`NAMED`], group, and everyone.
fn aces(allowed: [u16; 4]) -> Vec<Ace> {
    let who = [(0x1000, 0), (0, u64::from(NAMED)), (0x2040, 0), (0x4000, 0)];
    let ace = |((flags, id), rwx): ((u16, u64), u16)| {
        let mut mask = Want::READ_ACL | Want::READ_ATTRIBUTES | Want::SYNCHRONIZE;
        mask.set(Want::READ, rwx & 4 != 0);
        mask.set(Want::WRITE | Want::APPEND, rwx & 2 != 0);
        mask.set(Want::EXECUTE, rwx & 1 != 0);
        Ace { kind: 0, flags, mask: mask.bits(), id, object: None }
    };
    who.into_iter().zip(allowed).map(ace).collect()
}

/// Returns three bits for each class.
fn classes<const N: usize>(bits: u16) -> [u16; N] {
    std::array::from_fn(|at| bits >> (3 * at) & 7)
}

impl Pair {
    /// Returns the file or directory that a number selects.
    fn target(&self, number: usize) -> Id {
        let is_wanted = |node: &Node| matches!(node.body, Body::File(_) | Body::Dir(_));
        self.model.pick(number, is_wanted).unwrap_or(ROOT)
    }

    fn node(&mut self, id: Id) -> &mut Node {
        self.model.nodes.get_mut(&id).unwrap()
    }

    /// Whether one of these owners has reached its space quota, or with `counts` its object quota,
    /// as of the last sync.
    pub(crate) async fn is_full(&self, uid: u32, gid: u32, project: u32, counts: bool) -> bool {
        let holders =
            [Holder::User(uid.into()), Holder::Group(gid.into()), Holder::Project(project.into())];
        for holder in holders {
            for resource in [Resource::Space, Resource::Objects] {
                if resource == Resource::Objects && !counts {
                    continue;
                }
                let limit = self.mount().quota(holder, resource).await.unwrap();
                let used = self.mount().used(holder, resource).await.unwrap();
                if limit.is_some_and(|limit| used >= limit) {
                    return true;
                }
            }
        }
        false
    }

    /// Returns the expected result under quotas; evaluated again if it differs from the observed
    /// one, because a sync may have come in between.
    pub(crate) async fn settled(
        &self,
        found: Option<i32>,
        may: Outcome<()>,
        (uid, gid, project): (u32, u32, u32),
        counts: bool,
    ) -> Outcome<()> {
        let is_same = (found == Some(errno::EDQUOT)) == (may == Err(errno::EDQUOT));
        if is_same || may.is_err_and(|number| number != errno::EDQUOT) {
            return may;
        }
        let is_full = self.is_full(uid, gid, project, counts).await;
        if is_full { Err(errno::EDQUOT) } else { Ok(()) }
    }

    pub(crate) async fn on_attributes(&mut self, action: Action) -> Verdict {
        match action {
            Action::Own { node, mode, uid, gid } => {
                let id = self.target(node);
                self.own(id, mode, uid, gid).await
            }
            Action::SetXattr { node, name, len, byte } => {
                let value: Vec<u8> = (0..len).map(|at| byte.wrapping_add(at as u8)).collect();
                let id = self.target(node);
                self.set_xattr(id, &xattr_name(name), value).await
            }
            Action::RemoveXattr { node, name } => {
                let (id, name) = (self.target(node), xattr_name(name));
                let object = self.object(id);
                let found = number(self.mount().remove_xattr(&root(), object, &name).await);
                let extra = &self.model.nodes[&id].extra;
                let may = if extra.is_closed() {
                    Err(errno::EPERM)
                } else if extra.xattrs.contains_key(&name) {
                    Ok(())
                } else {
                    Err(errno::ENODATA)
                };
                same("remove attribute", &found, &may)?;
                if may.is_ok() {
                    self.node(id).extra.xattrs.remove(&name);
                }
                Ok(())
            }
            Action::XattrPlace { is_dir } => {
                let value = Value::U64(if is_dir { 1 } else { 2 });
                let set = self.fixture().engine.properties().set("tank", "xattr", value).await;
                set.map_err(|error| format!("{error:?}"))
            }
            Action::SetAcl { node, is_default, bits } => {
                let id = self.target(node);
                match self.acl_type {
                    AclType::Posix => self.set_posix(id, is_default, bits.map(classes)).await,
                    AclType::Nfs => self.set_nfs(id, classes(bits.unwrap_or(0o750))).await,
                    AclType::Off => Ok(()),
                }
            }
            Action::Project { node, project, hands_down } => {
                let id = self.target(node);
                self.set_project(id, project, hands_down).await
            }
            Action::Flags { node, is_immutable, is_append_only } => {
                let id = self.target(node);
                self.set_flags(id, is_immutable, is_append_only).await
            }
            Action::Quota { holder, is_objects, slack } => {
                let (holder, mount) = (HOLDERS[holder], self.mount());
                let resource = if is_objects { Resource::Objects } else { Resource::Space };
                let fail = |error: Error| format!("{error:?}");
                let used = mount.used(holder, resource).await.map_err(fail)?;
                let limit = slack.map_or(0, |slack| (used + slack).max(1));
                mount.set_quota(holder, resource, limit).await.map_err(fail)?;
                let found = mount.quota(holder, resource).await.map_err(fail)?;
                same("quota", &found, &Some(limit).filter(|limit| *limit > 0))
            }
            Action::Access { node, uid, gid, rwx } => {
                let id = self.target(node);
                let mut want = Want::empty();
                want.set(Want::READ, rwx & 4 != 0);
                want.set(Want::WRITE, rwx & 2 != 0);
                want.set(Want::EXECUTE, rwx & 1 != 0);
                let cred = Credentials::user(uid, gid, vec![]);
                let found = number(self.mount().access(&cred, self.object(id), want).await);
                let node = &self.model.nodes[&id];
                let may = if node.extra.is_immutable && rwx & 2 != 0 {
                    Err(errno::EPERM)
                } else if node.permits(uid, gid, rwx) {
                    Ok(())
                } else {
                    Err(errno::EACCES)
                };
                same("access", &found, &may)
            }
            other => panic!("{other:?}"),
        }
    }

    fn may_change_extra(&self, id: Id) -> Outcome<()> {
        if self.model.nodes[&id].extra.is_closed() { Err(errno::EPERM) } else { Ok(()) }
    }

    async fn own(
        &mut self,
        id: Id,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Verdict {
        if mode.is_none() && uid.is_none() && gid.is_none() {
            return Ok(());
        }
        let mut may = self.may_change_extra(id);
        let node = &self.model.nodes[&id];
        let new_uid = uid.filter(|uid| *uid != node.uid).unwrap_or(0);
        let new_gid = gid.filter(|gid| *gid != node.gid).unwrap_or(0);
        // No quota applies to root.
        if may.is_ok() && self.is_full(new_uid, new_gid, 0, true).await {
            may = Err(errno::EDQUOT);
        }
        let changes = SetAttributes { mode, uid, gid, ..SetAttributes::default() };
        let found = number(self.mount().set_attributes(&root(), self.object(id), &changes).await);
        let may = self.settled(found.err(), may, (new_uid, new_gid, 0), true).await;
        let has_acl = mode.is_some() && self.model.nodes[&id].extra.access.is_some();
        if may.is_ok() && has_acl && found == Err(errno::EDQUOT) {
            // A changed ACL may move from the list to objects of its own.
            return self.check_full(id).await;
        }
        same("own", &found.map(drop), &may)?;
        if may.is_ok() {
            self.node(id).own(uid, gid, mode);
            self.check(id, &found.unwrap())?;
        }
        Ok(())
    }

    async fn set_xattr(&mut self, id: Id, name: &[u8], value: Vec<u8>) -> Verdict {
        let object = self.object(id);
        let set = self.mount().set_xattr(&root(), object, name, &value, Existing::Any).await;
        let (found, may) = (number(set), self.may_change_extra(id));
        if found == Err(errno::EDQUOT) {
            // A value that does not fit into the list takes objects of its own.
            return self.check_full(id).await;
        }
        same("set attribute", &found, &may)?;
        if may.is_ok() {
            self.node(id).extra.xattrs.insert(name.to_vec(), value);
        }
        Ok(())
    }

    /// Checks that a refusal because of a quota was right.
    async fn check_full(&self, id: Id) -> Verdict {
        let node = &self.model.nodes[&id];
        let (uid, gid, project) = (node.uid, node.gid, node.extra.project.unwrap_or(0));
        same("quota", &self.is_full(uid, gid, project, true).await, &true)
    }

    async fn set_posix(&mut self, id: Id, is_default: bool, bits: Option<[u16; 5]>) -> Verdict {
        let (object, mount) = (self.object(id), self.mount());
        let is_default = is_default && self.model.nodes[&id].is_dir();
        let name = if is_default { POSIX_DEFAULT } else { POSIX_ACCESS };
        let acl =
            bits.map(|[owner, user, group, mask, other]| Posix { owner, user, group, mask, other });
        let done = match &acl {
            Some(acl) => {
                let name = name.as_bytes();
                mount.set_xattr(&root(), object, name, &encoded(acl), Existing::Any).await
            }
            None => mount.remove_xattr(&root(), object, name.as_bytes()).await,
        };
        let (found, may) = (number(done), self.may_change_extra(id));
        if found == Err(errno::EDQUOT) {
            return self.check_full(id).await;
        }
        same("set ACL", &found, &may)?;
        if may.is_err() {
            return Ok(());
        }
        if is_default {
            self.node(id).extra.default = acl;
        } else {
            self.node(id).set_access(acl);
        }
        self.check_attributes(id).await
    }

    async fn set_nfs(&mut self, id: Id, allowed: [u16; 4]) -> Verdict {
        let found = number(self.mount().set_acl(&root(), self.object(id), &aces(allowed)).await);
        let may = self.may_change_extra(id);
        same("set ACL", &found, &may)?;
        if may.is_ok() {
            self.node(id).set_nfs(allowed);
        }
        self.check_attributes(id).await
    }

    async fn set_project(&mut self, id: Id, project: u32, hands_down: bool) -> Verdict {
        let (object, mount) = (self.object(id), self.mount());
        let node = &self.model.nodes[&id];
        let hands_down = hands_down && node.is_dir();
        let mut flags = mount.attributes(object).await.map_err(|error| format!("{error:?}"))?.flags;
        flags.set(PFlags::PROJINHERIT, hands_down);
        let is_other = node.extra.project != Some(project);
        let may = if node.extra.is_immutable {
            Err(errno::EPERM)
        } else if is_other && self.is_full(0, 0, project, true).await {
            Err(errno::EDQUOT)
        } else {
            Ok(())
        };
        let changes = SetAttributes {
            project: Some(project),
            flags: Some(flags),
            ..SetAttributes::default()
        };
        let found = number(mount.set_attributes(&root(), object, &changes).await);
        let may = self.settled(found.err(), may, (0, 0, project), true).await;
        same("project", &found.map(drop), &may)?;
        if may.is_ok() {
            let extra = &mut self.node(id).extra;
            (extra.project, extra.hands_down) = (Some(project), hands_down);
        }
        Ok(())
    }

    async fn set_flags(&mut self, id: Id, is_immutable: bool, is_append_only: bool) -> Verdict {
        // An immutable root would end the history.
        if id == ROOT {
            return Ok(());
        }
        let (object, mount) = (self.object(id), self.mount());
        let mut flags = mount.attributes(object).await.map_err(|error| format!("{error:?}"))?.flags;
        flags.set(PFlags::IMMUTABLE, is_immutable);
        flags.set(PFlags::APPENDONLY, is_append_only);
        let changes = SetAttributes { flags: Some(flags), ..SetAttributes::default() };
        let found = number(mount.set_attributes(&root(), object, &changes).await);
        let stays = self.model.nodes[&id].extra.is_immutable && is_immutable;
        let may = if stays { Err(errno::EPERM) } else { Ok(()) };
        same("flags", &found.map(drop), &may)?;
        if may.is_ok() {
            let extra = &mut self.node(id).extra;
            (extra.is_immutable, extra.is_append_only) = (is_immutable, is_append_only);
        }
        Ok(())
    }

    /// Compares extended attributes and ACLs.
    pub(crate) async fn check_attributes(&self, id: Id) -> Verdict {
        let (object, mount) = (self.object(id), self.mount());
        let fail = |error: Error| format!("node {id}: {error:?}");
        let extra = &self.model.nodes[&id].extra;
        let mut found = BTreeMap::new();
        for name in mount.xattrs(&root(), object).await.map_err(fail)? {
            let value = mount.xattr(&root(), object, &name).await.map_err(fail)?;
            if found.insert(name, value).is_some() {
                return Err(format!("node {id}: an attribute is listed twice"));
            }
        }
        let expected = expected_xattrs(extra);
        if found != expected {
            let names = |of: &BTreeMap<Vec<u8>, Vec<u8>>| -> BTreeSet<(String, usize)> {
                of.iter().map(|(name, v)| (String::from_utf8_lossy(name).into(), v.len())).collect()
            };
            return Err(format!("node {id}: {:?}, not {:?}", names(&found), names(&expected)));
        }
        if let Some(allowed) = extra.nfs {
            let found = mount.acl(&root(), object).await.map_err(fail)?;
            same("ACL", &found, &aces(allowed))?;
        }
        Ok(())
    }
}

/// Returns all extended attributes of a node, including POSIX ACLs.
pub(crate) fn expected_xattrs(extra: &Extra) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut expected = extra.xattrs.clone();
    for (name, acl) in [(POSIX_ACCESS, &extra.access), (POSIX_DEFAULT, &extra.default)] {
        if let Some(acl) = acl {
            expected.insert(name.as_bytes().to_vec(), encoded(acl));
        }
    }
    expected
}
