//! The hash by which API servers tell which configuration they have.

use aws_lc_rs::digest;

/// What kube-apiserver gives as `hash` of `apiserver_encryption_config_controller_last_config_info` while it runs with
/// this file: SHA-256 of its bytes as they are, so that a changed comment is another hash.
///
/// That metric came after 1.31, which shows no hash.
pub fn file_hash(file: &[u8]) -> String {
    format!("sha256:{}", hex::encode(digest::digest(&digest::SHA256, file)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_sha_256_in_lower_case() {
        // FIPS 180-2, appendix B.1.
        assert_eq!(
            file_hash(b"abc"),
            "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
