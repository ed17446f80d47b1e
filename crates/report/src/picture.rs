//! A plot in pixels, for where SVG is not taken.

use std::path::Path;

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::fontdb::FaceInfo;
use resvg::usvg::{Options, Tree};

use crate::plot::PlotError;

/// Pixels for each unit of the SVG: sharp on the screens of today.
const SCALE: f32 = 2.0;

/// What a file of this name shall hold: PNG if it ends so, else the SVG as it is.
///
/// # Errors
/// [`PlotError`]: this machine has no fonts to write with.
pub fn for_file(file: &Path, svg: String) -> Result<Vec<u8>, PlotError> {
    let is_png = file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("png"));
    if is_png { png(&svg) } else { Ok(svg.into_bytes()) }
}

/// Plots ask for a font without serifs, which is Arial unless another is named: many machines do not have that.
fn sans_serif<'a>(faces: impl Iterator<Item = &'a FaceInfo>) -> Option<String> {
    const LIKED: [&str; 5] = ["DejaVu Sans", "Noto Sans", "Liberation Sans", "Arial", "Helvetica"];
    let families: Vec<&str> = faces.flat_map(|face| &face.families).map(|family| family.0.as_str()).collect();
    let liked = LIKED.into_iter().find(|liked| families.contains(liked));
    liked.or(families.first().copied()).map(str::to_owned)
}

fn png(svg: &str) -> Result<Vec<u8>, PlotError> {
    let mut options = Options::default();
    options.fontdb_mut().load_system_fonts();
    if options.fontdb.is_empty() {
        return Err(PlotError::new(
            "this machine has no fonts for PNG; install some (fonts-dejavu-core) or write SVG",
        ));
    }
    if let Some(family) = sans_serif(options.fontdb_mut().faces()) {
        options.fontdb_mut().set_sans_serif_family(family);
    }
    let tree = Tree::from_str(svg, &options).map_err(PlotError::new)?;
    let size = tree.size().to_int_size().scale_by(SCALE).ok_or_else(|| PlotError::new("it has no size"))?;
    let mut pixels =
        Pixmap::new(size.width(), size.height()).ok_or_else(|| PlotError::new("it is too large"))?;
    resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    pixels.encode_png().map_err(PlotError::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SVG: &str = r##"<svg xmlns="http://www.w3.org/2000/svg" width="30" height="20"><rect width="30" height="20" fill="#ff0000"/></svg>"##;

    #[test]
    fn the_name_says_what_is_written() {
        assert_eq!(for_file(Path::new("a.svg"), SVG.to_owned()).unwrap(), SVG.as_bytes());
        assert_eq!(for_file(Path::new("png"), SVG.to_owned()).unwrap(), SVG.as_bytes());
    }

    #[test]
    fn words_are_set_in_a_font_that_this_machine_has() {
        let svg = r##"<svg xmlns="http://www.w3.org/2000/svg" width="60" height="20"><text x="2" y="16" font-family="sans-serif" font-size="16" fill="#ff0000">HHH</text></svg>"##;
        match for_file(Path::new("a.png"), svg.to_owned()) {
            Ok(bytes) => {
                let pixels = Pixmap::decode_png(&bytes).unwrap();
                let red = pixels.pixels().iter().filter(|pixel| pixel.red() > 200).count();
                assert!(red > 100, "{red} pixels of ink");
            }
            Err(error) => assert!(error.to_string().contains("no fonts"), "{error}"),
        }
    }

    #[test]
    fn png_has_twice_the_pixels_in_the_colours_of_the_plot() {
        match for_file(Path::new("a.PNG"), SVG.to_owned()) {
            Ok(bytes) => {
                let pixels = Pixmap::decode_png(&bytes).unwrap();
                assert_eq!((pixels.width(), pixels.height()), (60, 40));
                let middle = pixels.pixel(30, 20).unwrap();
                assert_eq!((middle.red(), middle.green(), middle.blue(), middle.alpha()), (255, 0, 0, 255));
            }
            Err(error) => assert!(error.to_string().contains("no fonts"), "{error}"),
        }
    }
}
