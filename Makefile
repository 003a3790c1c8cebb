# make check is the everyday gate, make test the complete one; .ci/run calls that. Every step fails
# on any fault, also on a missing tool. .ci/deps installs the tools that the tests need beside Go.

GO    ?= go
TOOL   = $(GO) tool -modfile=.ci/go.mod
FUZZTIME ?= 10s
NESTED = cd interceptor/gosdk && # a module of its own: its users get only what they use

.NOTPARALLEL:
.PHONY: build check test deps fmt vet lint tidy unit ratios e2e fuzz bench clean

build: ## the binary, in bin/
	$(GO) build -trimpath -o bin/foldgate ./cmd/foldgate

# It leaves out the race detector, the ratios of speed, the end-to-end tests and go mod tidy.
check: fmt vet lint ## format, vet, staticcheck, unit tests; under three minutes on two idle cores
	@echo "== unit tests, without the race detector"
	@$(GO) test -skip '^TestRatio' -timeout 5m ./...
	@$(NESTED) $(GO) test -skip '^TestRatio' -timeout 5m ./...
	@echo "make check: passed"

test: deps fmt vet lint tidy unit ratios e2e ## everything; about an hour on two cores
	@echo "make test: passed"

deps: ## node packages by npm ci, a C compiler, node, redis-server and glewlwyd by apt-get where missing
	@.ci/deps

fmt:
	@echo "== gofmt"
	@bad="$$(gofmt -l $$(find . -name '*.go' -not -path '*/node_modules/*'))" || exit 1; \
	if [ -n "$$bad" ]; then echo "not formatted, run gofmt -w:"; echo "$$bad"; exit 1; fi

vet:
	@echo "== go vet"
	@$(GO) vet -tags e2e ./...
	@$(NESTED) $(GO) vet ./...

lint:
	@echo "== staticcheck"
	@$(TOOL) staticcheck -tags e2e ./...
	@bin="$$($(TOOL) -n staticcheck)" && $(NESTED) "$$bin" ./...

tidy:
	@echo "== go mod tidy"
	@$(GO) mod tidy -diff
	@$(NESTED) $(GO) mod tidy -diff

unit:
	@echo "== unit tests"
	@$(GO) test -race -timeout 10m ./...
	@$(NESTED) $(GO) test -race -timeout 10m ./...

ratios: ## speed as ratios measured in one run, and allocations, without the race detector
	@echo "== ratios"
	@$(GO) test -count 1 -p 1 -run '^Test(Ratio|Allocations)' -v ./budget/... ./interceptor/scrub ./proxy ./proxy/server
	@$(NESTED) $(GO) test -count 1 -run '^TestRatio' -v ./...

e2e: deps ## the binary against real clients and servers
	@echo "== end-to-end tests"
	@$(GO) test -race -tags e2e -timeout 75m -count 1 -p 1 -parallel 1 -v ./test/...

fuzz: ## every fuzz target for FUZZTIME
	@.ci/fuzz $(FUZZTIME)

bench: deps ## the cost of the gateway on a call, beside other forwarders; some minutes
	$(GO) run ./test/bench $(BENCH)

clean:
	rm -rf bin test/npm/node_modules
