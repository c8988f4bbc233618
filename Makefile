# `make up` and `make test` do all the set-up that they need on a fresh Debian 12 machine with Rust.
SHELL := /bin/bash
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

up: ## install missing packages, build, start a cluster, export a volume, print the next commands
	@scripts/up

build: ## build the binary (release; BASALT_PROFILE=debug for another profile)
	@scripts/setup
	@scripts/build

install: build ## install binary, manual pages, completion, systemd units: make install PREFIX=/usr/local DESTDIR=
	@scripts/install

uninstall: ## remove the files of `make install`
	@scripts/install uninstall

lib: ## build the C library (release): libbasalt.so, libbasalt.a; the header is crates/capi/include/basalt.h
	@scripts/lib build

install-lib: ## install the C library, its header and its pkg-config file: make install-lib PREFIX=/usr/local DESTDIR=
	@scripts/lib install

fio-engine: ## build the engine for Debian's fio; fetches the source of that fio for its headers
	@scripts/fio-engine

fio-engine-test: ## the same, and fio verifies a volume of a cluster of its own through it
	@scripts/fio-engine test

python: ## build the wheel of the Python package (release), in target/wheels
	@scripts/python build

python-test: ## the same in debug, checked, with its tests and examples on a cluster of its own
	@scripts/python test

deb: build ## a Debian package (installs cargo-deb when it is missing)
	@scripts/deb

fresh: ## `make up` and `make test` on a minimal Debian 12 in a chroot (root; 30 to 40 minutes)
	@scripts/fresh

down: ## stop the cluster of `make up`; its data stays
	@scripts/basalt dev down

test: ## every check: format, lints, tidy, tests, simulation, smoke
	@scripts/setup
	@cargo xtask ci

readme: ## run the commands of README.md
	@cargo xtask readme

sim: ## the simulator: make sim SEEDS=1000
	@cargo xtask sim --seeds $(or $(SEEDS),200) --jobs $$(nproc)

sim-long: ## counted runs that continue crates/sim/ledger.csv; make sim-long MINUTES=60 [START=2000000]
	@cargo xtask sim --ledger --minutes $(or $(MINUTES),60) $(addprefix --start ,$(START)) --jobs $$(nproc)

engine-crashes: ## the engine alone, crashes by seed on every kind of disk: make engine-crashes SEEDS=0..1000
	@ENGINE_SEEDS=$(or $(SEEDS),0..100) cargo test --quiet --profile sim --package engine --lib -- --nocapture many_seeds

fuzz: ## every fuzz target under libFuzzer: make fuzz MINUTES=10 [TARGET=name]
	@MINUTES=$(or $(MINUTES),10) TARGET=$(TARGET) scripts/fuzz

failure-report: ## failure scenarios on real processes, with a table of results
	@scripts/setup
	@cargo build --quiet --package cli --package testkit
	@cargo run --quiet --package testkit -- $(ARGS)

chaos: ## random faults on real processes, and a check of all answers to clients: make chaos MINUTES=10 SEED=1
	@scripts/setup
	@scripts/failpoints
	@cargo build --quiet --package cli --package testkit
	@cargo run --quiet --package testkit -- chaos --minutes $(or $(MINUTES),10) --seed $(or $(SEED),1) $(ARGS)

guest-nbd: ## `basalt nbd --device` under a kernel with the module nbd, in a guest of QEMU
	@scripts/guest-nbd

nbd-suite: ## the NBD protocol, clients and nbdkit against a cluster of its own: make nbd-suite [ONLY=fio]
	@scripts/nbd-suite $(ONLY)

bench: ## figures beside the least cost of this machine (release build, quiet machine): make bench [ARGS='--rows spread'] [PEER=ceph]
	@scripts/bench $(if $(PEER),--peer $(PEER)) $(ARGS)

bench-check: ## the same, and whether a ratio is worse than in docs/performance.json
	@scripts/bench --check docs/performance.json $(ARGS)

pgo: ## record the profile that release builds use: make pgo, then commit tools/pgo/basalt.profdata
	@scripts/pgo

profile: ## a flame graph of a row of the bench, with perf (root): make profile [ROW=spread/randwrite-4k/d32] [SECONDS=10]
	@scripts/profile $(or $(ROW),spread/randwrite-4k/d32) $(or $(SECONDS),10)

deny: ## install cargo-deny if it is missing and check licences, bans, sources
	@command -v cargo-deny >/dev/null || cargo install --locked cargo-deny@0.20.2
	@cargo deny check bans licenses sources

.PHONY: help up build install uninstall lib install-lib fio-engine fio-engine-test python python-test deb fresh down test readme sim sim-long engine-crashes fuzz failure-report chaos nbd-suite bench bench-check pgo profile guest-nbd deny
