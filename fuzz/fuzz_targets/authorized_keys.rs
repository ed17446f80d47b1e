#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| longhaul_fuzz_properties::authorized_keys(data));
