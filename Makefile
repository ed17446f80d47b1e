# make demo   the main job on real input, over an emulated long fat link
# make test   everything that is tested; ends with what was skipped, by name
# make fast   the loop while writing: format, lints, unit, property and simulation tests

PACKAGES_BUILD = gcc libc6-dev
PACKAGES_TEST  = sqlite3 iperf3 iproute2 iptables iputils-ping openssh-client openssh-server attr util-linux strace
PACKAGES_DEMO  = iproute2 iptables openssh-client openssh-server rsync xz-utils
PACKAGES_BENCH = $(PACKAGES_DEMO) rclone aria2 nginx-light xrootd-server xrootd-client iperf3 openssl iputils-ping

TARGET = $(or $(CARGO_TARGET_DIR),target)
SKIPS  = $(abspath $(TARGET))/skipped-tests.txt

.PHONY: demo test fast bench install

# DATA=DIR takes other data than Debian's kernel sources.
demo:
	@scripts/prepare $(PACKAGES_BUILD) $(PACKAGES_DEMO)
	cargo build --release --locked --package longhaul --package xtask
	$(TARGET)/release/xtask demo $(if $(DATA),--data "$(DATA)")

test:
	@scripts/prepare $(PACKAGES_BUILD) $(PACKAGES_TEST)
	@mkdir -p $(TARGET) && rm -f $(SKIPS)
	LONGHAUL_SKIPS=$(SKIPS) cargo test --workspace --locked
	@if [ -s $(SKIPS) ]; then echo "skipped:"; cat $(SKIPS); else echo "skipped: nothing"; fi

fast:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- --deny warnings
	cargo test --workspace --locked --lib --bins

bench:
	@scripts/prepare $(PACKAGES_BUILD) $(PACKAGES_BENCH)
	cargo build --release --locked --package longhaul --package xtask
	$(TARGET)/release/xtask bench emulator; true_to=$$?; \
	$(TARGET)/release/xtask bench targets; held=$$?; \
	$(TARGET)/release/xtask bench copy && exit $$((true_to > held ? true_to : held))

install:
	cargo install --locked --path crates/longhaul
