// @generated from proto/kms_v2_storage.proto by prost-build and tonic-prost-build: don't edit.
#[derive(Clone, PartialEq, ::prost::Message)]
#[prost(skip_debug)]
pub struct EncryptedObject {
    /// The object, encrypted by kube-apiserver under a DEK.
    #[prost(bytes = "bytes", tag = "1")]
    pub encrypted_data: ::prost::bytes::Bytes,
    /// `key_id` of the EncryptResponse.
    #[prost(string, tag = "2")]
    pub key_id: ::prost::alloc::string::String,
    /// `ciphertext` of the EncryptResponse: what Decrypt turns back into the DEK source.
    #[prost(bytes = "bytes", tag = "3")]
    pub encrypted_dek_source: ::prost::bytes::Bytes,
    /// `annotations` of the EncryptResponse.
    #[prost(btree_map = "string, bytes", tag = "4")]
    pub annotations: ::prost::alloc::collections::BTreeMap<
        ::prost::alloc::string::String,
        ::prost::bytes::Bytes,
    >,
    /// How the DEK comes from the DEK source.
    #[prost(enumeration = "EncryptedDekSourceType", tag = "5")]
    pub encrypted_dek_source_type: i32,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum EncryptedDekSourceType {
    /// The DEK source is the DEK, an AES key. encryptedData = nonce (12), AES-GCM ciphertext, tag (16).
    /// Written by Kubernetes 1.27 and 1.28.
    AesGcmKey = 0,
    /// The DEK source is a seed. encryptedData = info (32), nonce (12), AES-256-GCM ciphertext, tag (16); the DEK
    /// is HKDF-Expand(SHA-256, seed, info). Written by Kubernetes 1.29 and later.
    HkdfSha256XnonceAesGcmSeed = 1,
}
impl EncryptedDekSourceType {
    /// String value of the enum field names used in the ProtoBuf definition.
    ///
    /// The values are not transformed in any way and thus are considered stable
    /// (if the ProtoBuf definition does not change) and safe for programmatic use.
    pub fn as_str_name(&self) -> &'static str {
        match self {
            Self::AesGcmKey => "AES_GCM_KEY",
            Self::HkdfSha256XnonceAesGcmSeed => "HKDF_SHA256_XNONCE_AES_GCM_SEED",
        }
    }
    /// Creates an enum from field names used in the ProtoBuf definition.
    pub fn from_str_name(value: &str) -> ::core::option::Option<Self> {
        match value {
            "AES_GCM_KEY" => Some(Self::AesGcmKey),
            "HKDF_SHA256_XNONCE_AES_GCM_SEED" => Some(Self::HkdfSha256XnonceAesGcmSeed),
            _ => None,
        }
    }
}
