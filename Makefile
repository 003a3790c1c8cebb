# make check is the everyday gate, make test the complete one; .ci/run calls that. Every step fails
# on any fault, also on a missing tool. .ci/deps installs the tools that the tests need beside Go.

GO    ?= go
TOOL   = $(GO) tool -modfile=.ci/go.mod
FUZZTIME ?= 10s
NESTED = cd interceptor/gosdk && # a module of its own: its users get only what they use

# go test runs a part of go vet for each package. make check and make test run all of it first, so tests here have -vet=off.

.NOTPARALLEL:
.PHONY: build check test deps fmt vet platforms lint tidy unit ratios e2e race fuzz bench clean image image-node deploy release-check

build: ## the binary, in bin/
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/foldgate ./cmd/foldgate

# It leaves out the race detector, the ratios of speed, the end-to-end tests and go mod tidy.
check: fmt vet lint ## format, vet, staticcheck, unit tests; under three minutes on two idle cores
	@echo "== unit tests, without the race detector"
	@$(GO) test -vet=off -skip '^TestRatio' -timeout 5m ./...
	@$(NESTED) $(GO) test -vet=off -skip '^TestRatio' -timeout 5m ./...
	@echo "make check: passed"

test: deps fmt vet platforms lint tidy unit ratios e2e ## everything; about half an hour on two cores
	@echo "make test: passed"

deps: ## node packages by npm ci; a C compiler, node, redis-server, haproxy, nginx, chromium and glewlwyd of Debian where missing
	@.ci/deps

fmt:
	@echo "== gofmt"
	@bad="$$(gofmt -l $$(find . -name '*.go' -not -path '*/node_modules/*'))" || exit 1; \
	if [ -n "$$bad" ]; then echo "not formatted, run gofmt -w:"; echo "$$bad"; exit 1; fi

vet:
	@echo "== go vet"
	@$(GO) vet -tags e2e ./...
	@$(NESTED) $(GO) vet ./...

# No code depends on the architecture. The check misses faults within functions of dependencies, and those that a linker
# finds: make release-check builds for all six platforms, which compiles the dependencies for each, three minutes a platform.
platforms: ## types and imports are right for Windows, macOS and the BSDs, too
	@$(GO) run -tags e2e ./test/platforms windows/amd64 darwin/arm64 freebsd/amd64 openbsd/amd64 netbsd/amd64

lint:
	@echo "== staticcheck"
	@$(TOOL) staticcheck -tags e2e ./...
	@bin="$$($(TOOL) -n staticcheck)" && $(NESTED) "$$bin" ./...

tidy:
	@echo "== go mod tidy"
	@$(GO) mod tidy -diff
	@$(NESTED) $(GO) mod tidy -diff

# The lists of tests below have a line for each package: its directory, and names of tests without "Test".
# .ci/named checks that no other package has a test of that name, which -skip would lose.
empty =
space = $(empty) $(empty)
comma = ,
packages = $(foreach line,$(1),./$(firstword $(subst :, ,$(line))))
tests = ^Test($(subst $(space),|,$(strip $(foreach line,$(1),$(subst $(comma), ,$(lastword $(subst :, ,$(line))))))))$$

# These do one thing after the other, and the race detector makes them take five to twenty times as long. So they
# run without it; other tests of the same packages start the same goroutines of the product with it.
SEQUENTIAL = \
	budget/bpe:FirstCount,LimitedCount \
	budget/limits:Clock,RetryAfter \
	cmd/foldgate:NothingHostileReachesTheTerminal,Scripts,SumsBy,UnknownNames \
	interceptor:LimitsOfEveryKind,PreviewNamesTheWhole,PreviewsDoNotDependOnTheHandle \
	interceptor/preview:HostileTexts,PreviewKeepsItsBudget \
	interceptor/preview/extract:ConversionIsBounded,JQIsBounded,Pages \
	interceptor/scrub:Bombs,Forms,SameFindingsAsGitleaks,ValuesAreNoNames \
	interceptor/trace/query:DamagedIndex,IndexChangesNoAnswer,OrphansOfRetention,Pages \
	internal/hosts:DiffRedacts,Edits,Properties \
	internal/rawjson:Plain \
	proxy/control:TooManySpans \
	proxy/server:StdioUnreadableRequests \
	proxy/upstream:ReceiveManyValues

# The same, in the module of its own.
SEQUENTIAL_NESTED = interceptor/gosdk:MainJob,NothingDiffersFromTheGateway,NothingLeaks,SameAsTheGateway

# TestDoctor starts a foldgate doctor for each fault, one like the other: with the detector only in a machine in order.
unit:
	@.ci/named . $(SEQUENTIAL)
	@.ci/named interceptor/gosdk $(SEQUENTIAL_NESTED)
	@echo "== unit tests, with the race detector"
	@$(GO) test -vet=off -race -skip '$(call tests,$(SEQUENTIAL))|^TestDoctor$$/^[^i]' -timeout 20m ./...
	@$(NESTED) $(GO) test -vet=off -race -skip '$(call tests,$(SEQUENTIAL_NESTED))' -timeout 20m ./...
	@echo "== unit tests that do one thing after the other, without it"
	@$(GO) test -vet=off -run '$(call tests,$(SEQUENTIAL) cmd/foldgate:Doctor)' -timeout 10m $(call packages,$(SEQUENTIAL))
	@$(NESTED) $(GO) test -vet=off -run '$(call tests,$(SEQUENTIAL_NESTED))' -timeout 10m .

# Only packages with such a test are linked.
RATIOS = $$(grep -rlE '^func Test(Ratio|Allocations)' --include='*_test.go' budget folding interceptor proxy | grep -v ^interceptor/gosdk/ | sed 's|^|./|; s|/[^/]*$$||' | sort -u)

ratios: ## speed as ratios measured in one run, and allocations, without the race detector
	@echo "== ratios"
	@$(GO) test -vet=off -count 1 -p 1 -run '^Test(Ratio|Allocations)' -v $(RATIOS)
	@$(NESTED) $(GO) test -vet=off -count 1 -run '^TestRatio' -v .

# These do much at once, and have the race detector, which makes the binary five times slower. All others run without it.
ATONCE = \
	test/e2e:Batch,CrowdOfQuestions,Eviction,KilledUpstream,LimitOfThreeGateways,LimitOfTwoProcesses,LimitsThroughTheBinary \
	test/e2e:ManyQuestionsAtOnce,NotificationFlood,ParallelCallsOnTheLastTokens,PrincipalsAreAlone,PrincipalsShareNoConnection,QuestionFlood,RedisFailsOver,RedisHangs \
	test/e2e:ReloadUnderLoad,RenewedOnce,RestartedHTTPUpstream,ReturnWithCallsInFlight,Share,ShareOfTasks,ShareSurvivesTheEnd,Soak,UpstreamCrash

# These run both with and without it. Processes are killed less often with it.
TWICE = test/e2e:KilledGateway,KilledUnderLimits,NotificationsAndCancellation,SessionEnds,TimeoutCancelsTheCall

e2e: deps ## the binary against real clients and servers
	@.ci/named test $(ATONCE) $(TWICE)
	@echo "== end-to-end tests"
	@$(GO) test -vet=off -tags e2e -skip '$(call tests,$(ATONCE))' -timeout 45m -count 1 -p 1 -parallel 4 -v ./test/...
	@echo "== end-to-end tests of much at once, with the race detector"
	@$(GO) test -vet=off -race -tags e2e -run '$(call tests,$(ATONCE) $(TWICE))' -timeout 20m -count 1 -parallel 1 -v ./test/e2e -args -kills 3

race: deps ## all end-to-end tests with the race detector; about an hour
	@$(GO) test -vet=off -race -tags e2e -timeout 90m -count 1 -p 1 -parallel 1 -v ./test/...

fuzz: ## every fuzz target for FUZZTIME
	@.ci/fuzz $(FUZZTIME)

bench: deps ## the cost of the gateway on a call, beside other forwarders; some minutes
	$(GO) run ./test/bench $(BENCH)

image: ## the image foldgate:local, with docker, podman or buildah
	@.ci/image Dockerfile foldgate:local

image-node: ## the image foldgate:local-node, with node for npx servers
	@.ci/image Dockerfile.node foldgate:local-node

deploy: ## the chart, the systemd unit, the npm packages and server.json
	@echo "== deploy"
	@cd deploy && $(GO) mod tidy -diff && $(GO) vet ./... && $(GO) test -count 1 -timeout 20m ./...

release-check: ## all of a release that needs no registry; needs npm, systemd and minutes, for the image buildah
	@FOLDGATE_RELEASE_CHECK=1 $(MAKE) deploy
	@.ci/release-check

clean:
	rm -rf bin dist test/debian test/npm/node_modules
