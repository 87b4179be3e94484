//! Which figures there are: a folder each.

use anyhow::Result;

use crate::figure::Figure;

#[path = "../anubis-3-11/figure.rs"]
mod anubis_3_11;
#[path = "../anubis-3-6/figure.rs"]
mod anubis_3_6;
#[path = "../anubis-3-8/figure.rs"]
mod anubis_3_8;
#[path = "../anubis-3-9/figure.rs"]
mod anubis_3_9;
#[path = "../cps-10/figure.rs"]
mod cps_10;
#[path = "../cps-12/figure.rs"]
mod cps_12;
#[path = "../cps-7/figure.rs"]
mod cps_7;
#[path = "../cps-8/figure.rs"]
mod cps_8;
#[path = "../hylics-22/figure.rs"]
mod hylics_22;
#[path = "../hylics-23/figure.rs"]
mod hylics_23;
#[path = "../hylics-table3/figure.rs"]
mod hylics_table3;
#[path = "../libra-5.6/figure.rs"]
mod libra_5_6;
#[path = "../libra-5.7/figure.rs"]
mod libra_5_7;
#[path = "../vflowcomb-13/figure.rs"]
mod vflowcomb_13;
#[path = "../vflowcomb-15/figure.rs"]
mod vflowcomb_15;
#[path = "../vflowcomb-16/figure.rs"]
mod vflowcomb_16;
#[path = "../vspace-12/figure.rs"]
mod vspace_12;
#[path = "../vspace-13/figure.rs"]
mod vspace_13;
#[path = "../vspace-14/figure.rs"]
mod vspace_14;
#[path = "../vspace-8/figure.rs"]
mod vspace_8;

macro_rules! figure {
    ($folder:literal, $module:ident) => {
        Figure::new(
            $folder,
            include_str!(concat!("../", $folder, "/paper.toml")),
            $module::cases,
        )
    };
}

/// All of them, by paper and number.
pub fn all() -> Result<Vec<Figure>> {
    [
        figure!("anubis-3-6", anubis_3_6),
        figure!("anubis-3-8", anubis_3_8),
        figure!("anubis-3-9", anubis_3_9),
        figure!("anubis-3-11", anubis_3_11),
        figure!("cps-7", cps_7),
        figure!("cps-8", cps_8),
        figure!("cps-10", cps_10),
        figure!("cps-12", cps_12),
        figure!("hylics-22", hylics_22),
        figure!("hylics-23", hylics_23),
        figure!("hylics-table3", hylics_table3),
        figure!("libra-5.6", libra_5_6),
        figure!("libra-5.7", libra_5_7),
        figure!("vflowcomb-13", vflowcomb_13),
        figure!("vflowcomb-15", vflowcomb_15),
        figure!("vflowcomb-16", vflowcomb_16),
        figure!("vspace-8", vspace_8),
        figure!("vspace-12", vspace_12),
        figure!("vspace-13", vspace_13),
        figure!("vspace-14", vspace_14),
    ]
    .into_iter()
    .collect()
}
