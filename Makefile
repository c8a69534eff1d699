# Carve. `make help` explains every target.

ifneq ($(shell uname -s),Linux)
$(error Carve is built and tested on Linux; this is $(shell uname -s))
endif

GO        ?= go
CACHE     := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/carve
TOOLS     := $(CACHE)/tools
VERSION   ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS   := -s -w -X main.version=$(VERSION)
GOLANGCI  := $(TOOLS)/golangci-lint-v2.15.0
PROGRAMS  := lvmd node controller kubectl-carve
# Packages whose tests need a kernel with device-mapper, LVM and real disks, and the
# number of machines that share the tests.
VM_TESTS  := ../pkg/lvmd/... ../pkg/lvm/... ../pkg/filesystem/... ../pkg/driver/... ../pkg/luks ../pkg/iolimit/... ../pkg/devmapper ../pkg/blockdev
MACHINES  ?= 2
# Name of a demo cluster that may live beside the one the tests use.
DEMO      ?= demo

# The programs are static, whatever the C library of the machine.
export CGO_ENABLED ?= 0
# What was compiled in one checkout serves all others. Without symbols, which no
# backtrace needs, test programs are linked in two thirds of the time.
export GOFLAGS := $(strip -trimpath -ldflags=-s $(GOFLAGS))

.DEFAULT_GOAL := help
.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##### See it run

.PHONY: demo
demo: ## Bring up a real cluster, install Carve, show a volume; leaves the cluster up
	@cd e2e && $(GO) run ./cmd/preflight
	cd e2e && $(GO) run ./cmd/demo --cluster $(DEMO)

.PHONY: demo-down
demo-down: ## Remove the demo's cluster and everything it started
	cd e2e && $(GO) run ./cmd/cluster down --name $(DEMO)

##### Build

.PHONY: build
build: $(addprefix bin/,$(PROGRAMS)) ## Build the programs into bin/

.PHONY: $(addprefix bin/,$(PROGRAMS))
$(addprefix bin/,$(PROGRAMS)): bin/%:
	$(GO) build -ldflags '$(LDFLAGS)' -o $@ ./cmd/$*

.PHONY: image
image: ## Build the image into bin/carve-image.tar, a docker archive, without a container engine
	cd e2e && $(GO) run ./cmd/image carve --output ../bin/carve-image.tar

# The version that a release has: the newest in CHANGELOG.md.
RELEASE    = $(shell sed -n 's/^## \(v[0-9][^ ]*\)$$/\1/p' CHANGELOG.md | head -n 1)

# The architectures that a release has images for.
ARCHITECTURES := amd64 arm64

.PHONY: release
release: ## Make a release in dist/, without a container engine: images, SBOM, chart, manifests, kubectl-carve, checksums (KEY=file signs them)
	rm -rf dist
	@for arch in $(ARCHITECTURES); do \
	  (cd e2e && $(GO) run ./cmd/image carve --arch $$arch --name registry.example.com/carve:$(RELEASE) --version $(RELEASE) --output ../dist/carve-image-$(RELEASE)-linux-$$arch.tar) || exit 1; \
	done
	@minors=$$(cd release && $(GO) run ./cmd/release minors) || exit 1; for minor in $$minors; do for arch in $(ARCHITECTURES); do \
	  version=$(RELEASE)-k8s$$minor; \
	  (cd e2e && $(GO) run ./cmd/image scheduler --kubernetes $$minor --arch $$arch --name registry.example.com/carve-scheduler:$$version --version $(RELEASE) --output ../dist/carve-scheduler-image-$$version-linux-$$arch.tar) || exit 1; \
	done; done
	cd release && $(GO) run ./cmd/release $(if $(KEY),--key $(abspath $(KEY)))

.PHONY: push
push: ## Push the images in dist/ into a registry, under NAME:VERSION and NAME-scheduler:VERSION-k8sMINOR, and the chart beside them under charts/ (REGISTRY=registry/name, KEY=file signs them)
	cd release && $(GO) run ./cmd/release push $(REGISTRY) $(if $(KEY),--key $(abspath $(KEY)))

# The tests that make the pages of docs/reference, or hold them against the code.
REFERENCE := -count=1 -run '^TestReference' ./docs ./cmd/lvmd ./cmd/node ./cmd/controller

# The tests that make the alert rules' object and the dashboards, or compare them.
MADE      := -count=1 -run '^(TestTheObjectIsMade|TestTheFilesAre)' ./alerts ./dashboards

.PHONY: generate
generate: ## Generate the gRPC code from api/, the pages of docs/reference from the code, rules and dashboards from monitoring/
	cd tools && $(GO) run ./protogen ..
	$(GO) test $(REFERENCE) -args -update
	cd monitoring && $(GO) test $(MADE) -args -update

.PHONY: deps
deps: ## Install the Debian packages that the race detector needs
	@for package in gcc libc6-dev; do \
	  dpkg -s $$package >/dev/null 2>&1 || missing="$$missing $$package"; \
	done; \
	if [ -n "$$missing" ]; then apt-get update -q && apt-get install -q -y --no-install-recommends $$missing; fi

##### Check

# Stages begin in the order in which they are listed. Those that need processors alone begin while
# what the others need, such as Kubernetes, is made; the longest come early.
STAGES    := cd e2e && $(GO) run ./cmd/stages $(if $(STRICT),-strict) -nice check-generated,test-race,lint -condense test-unit,test-race,test-harness

# RUN chooses tests by a regular expression, in each target that runs tests. The stages use it to
# run failed tests once more.
CHOSEN     = $(if $(RUN),-run '$(RUN)')

.PHONY: test
test: ## Everything: generated code, unit tests with the race detector, real API server, real LVM, real cluster (STRICT=1 runs no failed test again, LINT=1 runs the linter, too)
	@cd e2e && $(GO) run ./cmd/preflight -disks 25 -shared 5
	@$(STAGES) -at-once 3 -first prepare check-generated test-e2e test-vm test-race test-apiserver test-powercut $(if $(LINT),lint) test-virtual test-systemd test-selinux test-harness

.PHONY: prepare
prepare: ## Make what clusters are made of, Kubernetes among it, where the cache lacks it
	cd e2e && $(GO) run ./cmd/cluster prepare

.PHONY: test-quick
test-quick: ## The inner loop: unit tests, and the controller against a real API server
	@$(STAGES) test-unit test-apiserver

# The tests of release and monitoring read files beside their modules, which go test does not
# look at before it reports a cached result.
.PHONY: test-unit
test-unit: ## Tests that run anywhere, in seconds
	$(GO) vet ./...
	$(GO) test $(VERBOSE) $(CHOSEN) ./...
	cd e2e && $(GO) vet ./... && $(GO) test $(VERBOSE) $(CHOSEN) ./...
	cd release && $(GO) vet ./... && $(GO) test -count=1 $(VERBOSE) $(CHOSEN) ./...
	cd monitoring && $(GO) vet ./... && $(GO) test -count=1 $(VERBOSE) $(CHOSEN) ./...
	cd tools && $(GO) vet ./... && $(GO) test $(VERBOSE) $(CHOSEN) ./...
	cd pkg/scheduler/plugin && $(GO) vet ./... && $(GO) test $(VERBOSE) $(CHOSEN) ./...

# Vetting looks at everything that is imported, too. The linter does it for all build tags. The tests of
# the documents compare texts; with the race detector they take over a minute.
.PHONY: test-race
test-race: deps ## The same, with the race detector where the product is tested
	@failed=0; \
	CGO_ENABLED=1 $(GO) test -race -vet=off -count=1 -timeout 20m $(VERBOSE) $(CHOSEN) $$($(GO) list ./... | grep -v '/docs$$') || failed=1; \
	$(GO) test -vet=off -count=1 $(VERBOSE) $(CHOSEN) ./docs || failed=1; \
	for module in e2e release monitoring tools pkg/scheduler/plugin; do \
	  (cd $$module && $(GO) test -vet=off -count=1 $(VERBOSE) $(CHOSEN) ./...) || failed=1; \
	done; exit $$failed

# Packages whose tests want a real API server beside fake nodes.
APISERVER_TESTS := pkg/controller pkg/controller/trust pkg/kubectl

# The module file of carve-scheduler for an older version of Kubernetes, where it supports that.
SCHEDULER_MOD    = $(if $(KUBERNETES),$(notdir $(wildcard pkg/scheduler/plugin/go-$(basename $(KUBERNETES)).mod)))

.PHONY: test-apiserver
test-apiserver: ## Tests of the controller against a real API server and scheduler, with fake nodes
	@for package in $(APISERVER_TESTS); do \
	  $(GO) test -tags apiserver -c -o bin/tests/$$(basename $$package) ./$$package || exit 1; \
	done
	cd release && $(GO) test -tags apiserver -c -o ../bin/tests/chart ./chart
	$(if $(KUBERNETES),,cd pkg/scheduler/plugin && $(GO) build -o $(CURDIR)/bin/tests/ ./carve-scheduler ./autoscaler)
	$(if $(SCHEDULER_MOD),cd pkg/scheduler/plugin && $(GO) build -modfile=$(SCHEDULER_MOD) -o $(CURDIR)/bin/tests/ ./carve-scheduler)
	@export CARVE_SCHEDULER=$(CURDIR)/bin/tests/carve-scheduler AUTOSCALER=$(CURDIR)/bin/tests/autoscaler; cd e2e && failed=0; for package in $(APISERVER_TESTS) release/chart; do \
	  names=$$(sed -n 's/^func \(Test[A-Za-z0-9]*\)(.*/\1/p' ../$$package/*_apiserver_test.go | grep -vx TestMain | grep -vE '^TestKarpenter$(if $(KUBERNETES),|TheAutoscaler$(if $(SCHEDULER_MOD),,|CarveScheduler))' | grep -E '$(RUN)' | paste -s -d '|'); \
	  [ -n "$$names" ] || continue; \
	  $(GO) run ./cmd/controlplane $(if $(KUBERNETES),--kubernetes v$(KUBERNETES)) env --chdir=../$$package $(CURDIR)/bin/tests/$$(basename $$package) \
	    -test.v -test.timeout 15m -test.run "^($$names)$$" || failed=1; \
	done; exit $$failed

.PHONY: test-karpenter
test-karpenter: ## Karpenter against a real API server and scheduler, with nodes of its kwok provider; part of soak
	cd e2e/karpenter && $(GO) vet . && $(GO) build -o $(CURDIR)/bin/tests/ .
	$(GO) test -tags apiserver -c -o bin/tests/controller ./pkg/controller
	cd e2e && KARPENTER=$(CURDIR)/bin/tests/karpenter $(GO) run ./cmd/controlplane env --chdir=../pkg/controller $(CURDIR)/bin/tests/controller \
	  -test.v -test.timeout 15m -test.run '$(or $(RUN),^TestKarpenter)'

# The minor versions of Kubernetes for which carve-scheduler has a module file, but for the newest one.
OLDER_SCHEDULERS := $(patsubst pkg/scheduler/plugin/go-%.mod,%,$(wildcard pkg/scheduler/plugin/go-*.mod))

.PHONY: test-scheduler
test-scheduler: ## Tests of the scheduler's plugin with older versions of Kubernetes; part of soak
	@failed=0; cd pkg/scheduler/plugin; for minor in $(OLDER_SCHEDULERS); do \
	  $(GO) vet -modfile=go-$$minor.mod . ./carve-scheduler && $(GO) test -modfile=go-$$minor.mod $(VERBOSE) $(CHOSEN) . || failed=1; \
	done; exit $$failed

# The last patch of each older version of Kubernetes that Carve runs on.
OLDER     := 1.33.13 1.34.4 1.35.4 1.36.3

.PHONY: test-kubernetes
test-kubernetes: ## The tests of test-apiserver with older versions of Kubernetes (KUBERNETES=1.33.13 takes one); part of soak
	@failed=0; for version in $(or $(KUBERNETES),$(OLDER)); do \
	  $(MAKE) test-apiserver KUBERNETES=$$version || failed=1; \
	done; exit $$failed

# Tests against real LVM that take long: variants of what other tests of test-vm show.
LONG_VM   := ^Test(LVMKilledInTheMiddleOfACommandOn.*|LVMKilledWhile.*|LvmdKilledWhileAGroupIsMade|$\
KilledBetweenTwoEffectsOnReal(Encrypted|RAID|Thin)Volumes|TheFreeSpaceOfRandomMachinesIsWhatLvmdSays|$\
NoGenerationSeesAnEarlierOneWhateverItsLayout|PoolsGoOnWhateverAKilledCommandLeft|$\
RAIDVolumesAreRepairedWhateverAKilledExtensionLeft|ACheckOfACacheThatTakesTooLongLeavesNothingInTheWay|$\
ASlowCheckOfAThinPoolHoldsUpNothingElse|APoolThatWasCheckedIsNotCheckedByLVM|$\
ThePoolsFlagAndDamageAreSeenBeforeItIsActivated|ACommandThatIsKilledOnAHangingDiskHoldsUpNoOtherGroup|$\
ADamagedGroupOfOthersHoldsUpNoGroup|AnMkfsThatHangsInTheKernelHoldsUpNoOtherGroup|$\
ADiskThatFailsNowAndThenLosesNothingAndOthersServe|AJournalThatIsRolledBackReformatsNoRealVolume|$\
AVolumeThatLVMConverts.*|AGroupThatLVMHidesIsServedOnceItIsShown|OfCachesOnlyLeftoversOfOurVolumesAreRemoved|$\
ManyRealSnapshotsAreDeletedAtOnceWhileOthersCreate|ARealPoolKeepsItsLayoutWhenItGrows)$$

# Tests on a cluster that take long: of components and overlays, and of what test-vm or test-apiserver shows, too.
LONG_E2E  := ^Test(Components|TheLoopAndLayoutsOverlaysServeVolumes|ANodeNeedsNoToolsAndNoWritableConfiguration|$\
RunningPodsNoticeNothingOfNewAgents|AVolumeThatExistsIsGivenToAClaim|KubectlCarveAdoptsAVolumeOfAnotherDriver|$\
VolumesComeBackAfterAPowerCut|APodLeavesANodeWhoseLVMHangs|AStatefulSetLeavesALostNodeWhereItsClassSaysSo|$\
PodThatAsksForMoreThanAnyNodeHasWaitsUntilSpaceAppears|TheLimitOfANodeFollowsItsFreeSpace|$\
BurstThatExactlyFillsTheNodesRunsWithOneFailureOfAPodAtMost|ARandomScenarioLosesAndLeaksNothing|$\
ANodeIsRemovedWhilePodsWithMovableVolumesMove|APodWhoseSchedulerIsKilledRunsWhereItsMovableVolumeIs|$\
ADeletedVolumeWaitsForAnAdministratorsSnapshot|AFrozenVolumeIsUsedByTheNextPod|$\
AGroupThatAPodWritesIntoItsRawVolumeIsNotTheNodes)$$

.PHONY: test-vm
test-vm: ## Tests against real LVM, in virtual machines (MACHINES=n)
	cd e2e && $(GO) run ./cmd/vmtest -machines $(MACHINES) -timeout 45m -with lvmd,node $(or $(CHOSEN),-skip '$(LONG_VM)') $(VM_TESTS)

.PHONY: test-long
test-long: ## The tests of test-vm and test-e2e that take long; part of soak
	cd e2e && $(GO) run ./cmd/vmtest -machines $(MACHINES) -timeout 1h -with lvmd,node -run '$(LONG_VM)' $(VM_TESTS)
	cd e2e && $(GO) test -tags e2e -count=1 -timeout 2h -parallel 4 -v -run '$(LONG_E2E)' ./tests

.PHONY: test-powercut
test-powercut: ## Cut the power of a virtual machine while lvmd changes volumes
	cd e2e && $(GO) test -tags e2e -count=1 -timeout 20m -v $(CHOSEN) ./powercut

.PHONY: test-harness
test-harness: ## Tests of what the other tests stand on: network namespaces, control plane, a cluster's beginning and end
	cd e2e && $(GO) test -tags e2e -count=1 -timeout 20m $(VERBOSE) $(CHOSEN) ./netns ./controlplane
	cd e2e && $(GO) test -tags e2e -count=1 -timeout 20m $(VERBOSE) $(CHOSEN) -skip '^TestARealCluster$$/power_cut' ./cluster

.PHONY: test-systemd
test-systemd: ## Tests of lvmd's systemd unit, in a machine that systemd boots
	cd e2e && $(GO) run ./cmd/vmtest -systemd -timeout 15m -with lvmd $(CHOSEN) ../deploy/systemd

.PHONY: test-selinux
test-selinux: ## Tests of volumes' labels, in a virtual machine with SELinux in force
	cd e2e && $(GO) run ./cmd/vmtest -selinux -timeout 10m -with lvmd,node $(CHOSEN) ../pkg/driver

.PHONY: test-virtual
test-virtual: ## Tests that need what only a virtual machine has: persistent memory, disks that are unplugged
	cd e2e && $(GO) run ./cmd/vmtest -virtual -timeout 15m -with lvmd,node $(CHOSEN) ../pkg/lvmd ../pkg/driver

.PHONY: test-old-kernel
test-old-kernel: ## Mount new file systems on a kernel older than the oldest supported one (Linux 5.10), in a virtual machine; part of soak
	cd e2e && $(GO) run ./cmd/vmtest -kernel bullseye -timeout 30m ../pkg/filesystem

.PHONY: test-pmem
test-pmem: ## Memcached on a Kubernetes node with persistent memory, emulated where there is no KVM; part of soak
	cd e2e && $(GO) test -tags e2e -count=1 -timeout 30m -v ./pmem

.PHONY: test-arm64
test-arm64: ## Make the images for arm64 and start their programs under emulation; part of soak
	cd e2e && $(GO) test -tags e2e -count=1 -timeout 30m -v -run ARM64 ./image

# Rounds of power cuts in a soak, schedules of events of a cluster's random scenario, and what
# orders them.
ROUNDS    ?= 50
SCHEDULES ?= 20
SEED      ?= $(shell date +%s)

.PHONY: soak
soak: test-systemd test-long test-pmem test-old-kernel test-arm64 test-upgrade test-prometheus test-kubelet-directory test-karpenter test-kubernetes test-scheduler ## What takes long: many power cuts, lvmd and LVM killed everywhere, random machines, lvmd under systemd, a cluster's random scenario (ROUNDS=n SCHEDULES=n SEED=n)
	cd e2e && $(GO) test -tags e2e -count=1 -timeout 6h -v ./powercut -args -rounds $(ROUNDS)
	cd e2e && $(GO) run ./cmd/vmtest -timeout 8h -with lvmd -env CARVE_SOAK=1 -run 'Killed|RandomMachines|NoGeneration|RealFreeSpace' ../pkg/lvmd ../pkg/lvm
	cd e2e && $(GO) run ./cmd/vmtest -timeout 8h -with lvmd,node -env CARVE_SOAK=1 -run 'IsKilled' ../pkg/driver
	CARVE_SOAK=1 $(GO) test -count=1 -timeout 1h -run 'Cycles' ./pkg/lvmd
	cd e2e && $(GO) test -tags e2e -count=1 -timeout 1h -v ./cluster
	cd e2e && $(GO) test -tags e2e -count=1 -timeout 10h -v -run RandomScenario ./tests -args -schedules $(SCHEDULES) -seed $(SEED)

# The test that builds an earlier version, and replaces all of Carve six times.
UPGRADE   := TestTheVersionBeforeIsUpgradedAndGoneBackTo

.PHONY: test-upgrade
test-upgrade: ## Upgrade from an earlier version under I/O and go back, on a real cluster; part of soak
	cd e2e && $(GO) test -tags e2e -count=1 -timeout 30m -v -run '^$(UPGRADE)$$' ./tests

# The test that builds a Prometheus server.
PROMETHEUS := TestPrometheusSeesThatTheControllerIsDown

.PHONY: test-prometheus
test-prometheus: ## Run Prometheus as docs/how-to/monitoring.md says, on a real cluster, and see the first alert; part of soak
	cd e2e && $(GO) test -tags e2e -count=1 -timeout 30m -v -run '^$(PROMETHEUS)$$' ./tests

# The test that has a cluster of its own.
KUBELETDIR := TestAKubeletWithADirectoryOfItsOwn

.PHONY: test-kubelet-directory
test-kubelet-directory: ## Install the chart for k0s, whose kubelet has another directory, on a real cluster; part of soak
	cd e2e && $(GO) test -tags e2e -count=1 -timeout 30m -v -run '^$(KUBELETDIR)$$' ./tests

.PHONY: test-e2e
test-e2e: ## Tests on a real Kubernetes cluster (RUN=regexp chooses, KEEP=1 leaves the cluster up)
	cd e2e && $(GO) test -tags e2e -count=1 -timeout 75m -parallel 4 -v $(or $(CHOSEN),-skip '$(LONG_E2E)|^($(UPGRADE)|$(PROMETHEUS)|$(KUBELETDIR))$$') ./tests $(if $(KEEP),-args -keep)

.PHONY: bench
bench: bench-lvmd bench-node bench-io bench-controller bench-pod ## All measurements, each a ratio within one run

.PHONY: bench-lvmd
bench-lvmd: ## Measure lvmd against lvcreate and lvremove by hand, in a virtual machine (VOLUMES=0,100,500,1000)
	cd e2e && $(GO) run ./cmd/vmtest -timeout 2h -with lvmd $(if $(VOLUMES),-env CARVE_BENCH_VOLUMES=$(VOLUMES)) -run '^$$' -bench Lvmd ../pkg/lvmd

.PHONY: bench-node
bench-node: ## Measure a node with few and with many volumes, and an idle one, in a virtual machine (VOLUMES=10,100,500, IDLE=10m)
	cd e2e && $(GO) run ./cmd/vmtest -timeout 2h -disk-size 6 -with lvmd,node $(if $(VOLUMES),-env CARVE_BENCH_VOLUMES=$(VOLUMES)) -env CARVE_BENCH_IDLE=$(or $(IDLE),10m) -run '^$$' -bench Node ../pkg/lvmd

.PHONY: bench-mount
bench-mount: ## Measure stage and publish against a bare mount, in a virtual machine
	cd e2e && $(GO) run ./cmd/vmtest -run '^$$' -bench RealMounting ../pkg/driver

.PHONY: bench-io
bench-io: ## Measure file systems and the scratch profile against a bare volume with fio, in a virtual machine
	cd e2e && $(GO) run ./cmd/vmtest -run '^$$' -bench RealIO ../pkg/driver

.PHONY: bench-controller
bench-controller: ## Measure the controller with a real control plane and fake nodes
	cd e2e && $(GO) run ./cmd/benchcontroller

.PHONY: bench-scale
bench-scale: ## Measure two replicas with many simulated nodes (NODES=50,1000,5000; VOLUMES, HELD, CLASSES, FULL, BURST, CHURN, SCHEDULER, RESTARTS)
	cd e2e && $(GO) run ./cmd/benchcontroller -scale $(if $(NODES),$(NODES),50,1000) $(if $(VOLUMES),-volumes $(VOLUMES)) $(if $(HELD),-held $(HELD)) \
		$(if $(CLASSES),-classes $(CLASSES)) $(if $(FULL),-full $(FULL)) -scale-bursts $(if $(BURST),$(BURST),100,1000) -churn-rate 20 $(if $(CHURN),-churn $(CHURN)) \
		$(if $(SCHEDULER),-scheduler $(SCHEDULER)) $(if $(RESTARTS),-restarts=$(RESTARTS))

.PHONY: bench-pod
bench-pod: bench-mount ## Measure stage and publish against a bare mount, then Pod start and volumes per second on a real cluster
	cd e2e && $(GO) run ./cmd/benchpod

.PHONY: check-generated
check-generated: ## Fail when generated code or pages are not current
	cd tools && $(GO) run ./protogen -check ..
	$(GO) test $(REFERENCE)

# Packages with files that the build tag kernel leaves out.
WITHOUT_KERNEL = $(shell grep -rl --include='*.go' '^//go:build !kernel' api cmd pkg deploy | xargs -n 1 dirname | sort -u | sed 's|^|./|')

.PHONY: lint
lint: export GOGC := 300
lint: $(GOLANGCI) ## Run golangci-lint, go vet in it, with the committed configuration over the files of every build tag
	$(GOLANGCI) run --build-tags kernel,apiserver,selinux,virtual,oldkernel ./...
	$(GOLANGCI) run $(WITHOUT_KERNEL)
	cd e2e && $(GOLANGCI) run --config ../.golangci.yml --build-tags e2e ./...
	cd tools && $(GOLANGCI) run --config ../.golangci.yml ./...
	cd release && $(GOLANGCI) run --config ../.golangci.yml --build-tags apiserver ./...
	cd monitoring && $(GOLANGCI) run --config ../.golangci.yml ./...
	cd pkg/scheduler/plugin && $(GOLANGCI) run --config ../../../.golangci.yml ./...

$(GOLANGCI):
	GOBIN=$(TOOLS) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
	mv $(TOOLS)/golangci-lint $@

.PHONY: clean
clean: ## Remove what was built here (the cache of the harness stays)
	rm -rf bin dist e2e/bin
