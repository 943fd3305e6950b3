//! Object sets, dnodes, indirect trees, ZAP, bpobj.
