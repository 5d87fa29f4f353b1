//! `#[derive(Row)]`: a struct with named fields as a row.
//!
//! Owns the code that is written for such a struct: an implementation of `hedgerow::TypedRow`. It promises to refuse what is no such struct, and
//! attributes that it does not know, at their place in the source. It must not know what a type is in a row: that is `FieldValue`'s.
#![deny(clippy::print_stdout, clippy::print_stderr)]

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::quote;
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Expr, Fields, Ident, LitStr, Result, Type, parse_macro_input};

/// Makes a struct with named fields a row: `hedgerow::TypedRow`. Each field is one of the row, of the type that `hedgerow::FieldValue` says; an
/// `Option` is nullable. The key is not among them.
///
/// Of a field: `#[row(rename = "name")]` gives it another name in the table; `#[row(default = 3)]` is what rows written without it hold.
#[proc_macro_derive(Row, attributes(row))]
pub fn derive_row(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(&input).unwrap_or_else(Error::into_compile_error).into()
}

/// A field of the struct.
struct RowField<'i> {
    ident: &'i Ident,
    kind: &'i Type,
    name: String,
    default: Option<Expr>,
}

fn expand(input: &DeriveInput) -> Result<Tokens> {
    if let Some(attribute) = input.attrs.iter().find(|attribute| attribute.path().is_ident("row")) {
        return Err(Error::new(
            attribute.span(),
            "there is no `row` attribute of a struct, only of its fields",
        ));
    }
    let fields = fields_of(input)?;
    let (ident, count) = (&input.ident, fields.len());
    if let Some(parameter) = input.generics.params.first() {
        return Err(Error::new(parameter.span(), "a row has no parameters"));
    }
    let schema = fields.iter().map(|RowField { kind, name, default, .. }| match default {
        None => quote!(.field_of::<#kind>(#name)),
        Some(default) => quote!(.field_of_with_default::<#kind>(#name, &{ #default })),
    });
    let reads = fields.iter().map(|RowField { ident, kind, name, .. }| {
        quote!(#ident: ::hedgerow::ReadFields::field::<#kind>(row, #name)?)
    });
    let writes = fields
        .iter()
        .map(|RowField { ident, name, .. }| quote!((#name, ::hedgerow::FieldValue::to_value(&self.#ident))));
    Ok(quote! {
        #[automatically_derived]
        impl ::hedgerow::TypedRow for #ident {
            type Fields<'r> = [(&'static str, ::hedgerow::Value<'r>); #count];

            fn schema() -> ::hedgerow::Schema {
                ::hedgerow::Schema::new() #(#schema)*
            }

            fn from_row(row: &impl ::hedgerow::ReadFields) -> ::hedgerow::Result<Self> {
                ::core::result::Result::Ok(#ident { #(#reads),* })
            }

            fn to_fields(&self) -> Self::Fields<'_> {
                [#(#writes),*]
            }
        }
    })
}

fn fields_of(input: &DeriveInput) -> Result<Vec<RowField<'_>>> {
    let Data::Struct(of_struct) = &input.data else {
        return Err(Error::new(input.ident.span(), "a row is a struct with named fields"));
    };
    let Fields::Named(named) = &of_struct.fields else {
        return Err(Error::new(input.ident.span(), "a row is a struct with named fields"));
    };
    let mut fields: Vec<RowField<'_>> = Vec::with_capacity(named.named.len());
    for field in &named.named {
        let ident = field.ident.as_ref().expect("the fields are named");
        let mut row = RowField { ident, kind: &field.ty, name: ident.unraw().to_string(), default: None };
        for attribute in field.attrs.iter().filter(|attribute| attribute.path().is_ident("row")) {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("rename") {
                    row.name = meta.value()?.parse::<LitStr>()?.value();
                } else if meta.path.is_ident("default") {
                    row.default = Some(meta.value()?.parse()?);
                } else {
                    return Err(meta.error("of a field there are `rename = \"name\"` and `default = value`"));
                }
                Ok(())
            })?;
        }
        if fields.iter().any(|other| other.name == row.name) {
            return Err(Error::new(field.span(), format!("two fields are called {:?}", row.name)));
        }
        fields.push(row);
    }
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    fn refused(input: DeriveInput) -> String {
        expand(&input).map(|code| code.to_string()).expect_err("it is no row").to_string()
    }

    #[test]
    fn a_struct_has_its_fields_under_their_names() {
        let code = expand(&parse_quote! {
            struct User { r#type: String, #[row(rename = "years", default = 3)] age: u8 }
        });
        let code = code.map(|code| code.to_string()).expect("it is a row");
        for part in ["\"type\"", "\"years\"", "field_of_with_default", "; 2usize]"] {
            assert!(code.contains(part), "{part}: {code}");
        }
        assert!(!code.contains("\"age\""), "{code}");
    }

    #[test]
    fn what_is_no_row_is_refused() {
        assert!(
            refused(parse_quote!(
                enum A {
                    B,
                }
            ))
            .contains("struct with named fields")
        );
        assert!(
            refused(parse_quote!(
                struct A(u8);
            ))
            .contains("struct with named fields")
        );
        assert!(
            refused(parse_quote!(
                struct A<T> {
                    t: T,
                }
            ))
            .contains("no parameters")
        );
        let unknown = refused(parse_quote!(
            struct A {
                #[row(other)]
                a: u8,
            }
        ));
        assert!(unknown.contains("`rename = \"name\"`"), "{unknown}");
        let of_struct = refused(parse_quote!(
            #[row(rename = "b")]
            struct A {
                a: u8,
            }
        ));
        assert!(of_struct.contains("only of its fields"), "{of_struct}");
        assert!(
            refused(parse_quote!(
                struct A {
                    #[row(rename = "b")]
                    a: u8,
                    b: u8,
                }
            ))
            .contains("two fields")
        );
    }
}
