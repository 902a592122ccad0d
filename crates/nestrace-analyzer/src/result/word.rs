//! Enums whose variants are the fixed words of the JSON.

/// Defines an enum that serializes to one word for each variant, and shows the same word in text.
///
/// The variants are ordered as they stand here. Where the words are keys of a map, that is the order in the JSON.
macro_rules! words {
    ($(
        $(#[$of_enum:meta])*
        pub enum $name:ident {
            $($(#[$of_variant:meta])* $variant:ident = $word:literal,)*
        }
    )*) => {$(
        $(#[$of_enum])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub enum $name {
            $($(#[$of_variant])* #[serde(rename = $word)] $variant,)*
        }

        impl $name {
            /// The word in JSON and in text.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    )*};
}

pub(crate) use words;
