//! Icon of the pages in the colour of the fleet, with a red dot while something needs attention.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use kafleet_config::Colour;

use super::parts::View;

/// Colour of a fleet that has none of its own.
const DEFAULT: Colour = Colour([0x0b, 0x57, 0xb8]);
const DOT: &str =
    "<circle cx=\"24\" cy=\"8\" r=\"8\" fill=\"#fff\"/><circle cx=\"24\" cy=\"8\" r=\"6\" fill=\"#d1242f\"/>";

/// Name of an icon: `icon-0b57b8.svg`, or `icon-0b57b8-attention.svg`.
fn name(colour: Option<Colour>, needs_attention: bool) -> String {
    let colour = colour.unwrap_or(DEFAULT).to_string();
    format!("icon-{}{}.svg", colour.trim_start_matches('#'), if needs_attention { "-attention" } else { "" })
}

/// URL of the icon.
pub(super) fn icon_url(view: &View, colour: Option<Colour>, needs_attention: bool) -> String {
    view.url(&format!("/ui/{}", name(colour, needs_attention)))
}

/// Answers a request for an icon; `None` if the name is not that of one.
pub(super) fn serve_icon(requested: &str) -> Option<Response> {
    let digits = requested.strip_prefix("icon-")?.get(..6)?;
    let colour = Colour::parse(&format!("#{digits}")).ok().or_else(|| (digits == "0b57b8").then_some(DEFAULT))?;
    let needs_attention = [false, true].into_iter().find(|attention| name(Some(colour), *attention) == requested)?;
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("image/svg+xml")),
        (header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=86400")),
    ];
    Some((StatusCode::OK, headers, drawing(colour, needs_attention)).into_response())
}

fn drawing(colour: Colour, needs_attention: bool) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 32 32\"><rect width=\"32\" height=\"32\" rx=\"7\" fill=\"{colour}\"/>\
         <path d=\"M9 7v18M9 16h5m0 0 9-8m-9 8 9 8\" fill=\"none\" stroke=\"#fff\" stroke-width=\"3\" stroke-linecap=\"round\" \
         stroke-linejoin=\"round\"/>{}</svg>",
        if needs_attention { DOT } else { "" }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn icons_have_a_colour_and_a_state() {
        let red = Colour::parse("red").ok();
        for name in [name(None, false), name(None, true), name(red, true)] {
            assert!(serve_icon(&name).is_some(), "{name}");
        }
        for name in
            ["icon-.svg", "icon-ffffff.svg", "icon-0b57b8.png", "icon-0b57b8-x.svg", "icon-é0b57b.svg", "app.css"]
        {
            assert!(serve_icon(name).is_none(), "{name}");
        }
        assert!(drawing(DEFAULT, true).contains("circle") && !drawing(DEFAULT, false).contains("circle"));
    }
}
