//! The three declarations: objects, words and kinds.

/// An object of the API: `field: Type = schema`, each with a doc comment that is also its description. Fields are spelled
/// in camel case on the wire and left out when empty ([`super::Omit`]).
macro_rules! object {
    ($(#[doc = $about:literal])* $name:ident { $($(#[doc = $doc:literal])* $field:ident: $ty:ty = $schema:expr,)* }
        $(where $($rule:expr => $message:expr,)*)?) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $name {
            $($(#[doc = $doc])*
            #[serde(skip_serializing_if = "crate::crd::Omit::omit")]
            pub $field: $ty,)*
        }

        impl $name {
            pub fn schema() -> crate::crd::Schema {
                crate::crd::Schema::object()
                    $(.field(&crate::crd::camel(stringify!($field)), concat!("", $($doc,)*), $schema))*
                    $($(.rule($rule, $message))*)?
            }
        }

        impl crate::crd::Omit for $name {}
    };
}

/// A closed set of words. The first is the default, or the one named after `or`.
macro_rules! words {
    ($(#[doc = $about:literal])* $name:ident $(or $default:ident)? { $($(#[doc = $doc:literal])* $word:ident = $text:literal,)* }) => {
        $(#[doc = $about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[doc = $doc])* #[serde(rename = $text)] $word,)*
        }

        impl $name {
            /// All of them, in the order they are declared.
            pub const ALL: &'static [$name] = &[$($name::$word,)*];

            /// As the wire spells it.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $($name::$word => $text,)*
                }
            }

            /// What the wire spells like this, if it is one of them.
            pub fn parse(text: &str) -> Option<$name> {
                $name::ALL.iter().copied().find(|word| word.as_str() == text)
            }

            pub fn schema() -> crate::crd::Schema {
                crate::crd::Schema::word(&[$($text,)*])
            }
        }

        impl Default for $name {
            fn default() -> $name {
                [$($name::$default,)? $name::ALL[0]][0]
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl crate::crd::Omit for $name {}
    };
}

/// A kind: the fields beside `metadata`, and how it is served. It is a `k8s_openapi::Resource`, and so a `kube::Resource`.
macro_rules! kind {
    ($(#[doc = $about:literal])* $name:ident in $group:literal $version:literal, $scope:ident $plural:literal {
        $($(#[doc = $doc:literal])* $field:ident: $ty:ty = $schema:expr,)* } $(where $($rule:expr => $message:expr,)*)?) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $name {
            pub metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
            $($(#[doc = $doc])* pub $field: $ty,)*
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                #[derive(serde::Serialize)]
                #[serde(rename_all = "camelCase")]
                struct Wire<'a> {
                    api_version: &'static str,
                    kind: &'static str,
                    metadata: &'a k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
                    $(#[serde(skip_serializing_if = "Option::is_none")] $field: Option<&'a $ty>,)*
                }
                // A part that says nothing is left out: the server fills in or clears it anyway.
                let wire = Wire {
                    api_version: concat!($group, "/", $version),
                    kind: stringify!($name),
                    metadata: &self.metadata,
                    $($field: Some(&self.$field).filter(|v| stringify!($field) == "value" || **v != <$ty>::default()),)*
                };
                wire.serialize(serializer)
            }
        }

        impl k8s_openapi::Resource for $name {
            const API_VERSION: &'static str = concat!($group, "/", $version);
            const GROUP: &'static str = $group;
            const KIND: &'static str = stringify!($name);
            const VERSION: &'static str = $version;
            const URL_PATH_SEGMENT: &'static str = $plural;
            type Scope = kind!(@scope $scope);
        }

        impl k8s_openapi::ListableResource for $name {
            const LIST_KIND: &'static str = concat!(stringify!($name), "List");
        }

        impl k8s_openapi::Metadata for $name {
            type Ty = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

            fn metadata(&self) -> &Self::Ty {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut Self::Ty {
                &mut self.metadata
            }
        }

        impl $name {
            /// The definition with names, scope and schema; what else it needs is added where it is served from.
            fn declared() -> crate::crd::Definition {
                let schema = crate::crd::Schema::object().about(concat!("", $($about,)*))
                    $(.field(&crate::crd::camel(stringify!($field)), concat!("", $($doc,)*), $schema))*
                    $($(.rule($rule, $message))*)?;
                crate::crd::Definition::of::<$name>(kind!(@namespaced $scope), schema)
            }
        }
    };
    (@scope Cluster) => { k8s_openapi::ClusterResourceScope };
    (@scope Namespaced) => { k8s_openapi::NamespaceResourceScope };
    (@namespaced Cluster) => { false };
    (@namespaced Namespaced) => { true };
}

pub(crate) use {kind, object, words};
