//! Who may come in, and what they may do.
//!
//! Everything here is a function of its arguments: the certificates and keys ([`pki`]) are the only files, `now` is passed
//! in, and what the store holds is seen through small traits. A request passes [`authenticate`] (certificate, bearer token
//! or nobody), [`impersonation`], and [`rbac`]. Start reading at [`identity`].

pub mod authenticate;
pub mod bootstrap;
pub mod identity;
pub mod impersonation;
pub mod jwt;
pub mod pki;
pub mod rbac;
pub mod refusal;
pub mod reviews;
pub mod token_file;
pub mod token_request;
