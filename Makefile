# make test is the whole gate; .ci/run calls it. Every step fails on any fault,
# a missing tool included. .ci/deps installs what the tests need beyond Go.

GO    ?= go
TOOL   = $(GO) tool -modfile=.ci/go.mod
FUZZTIME ?= 10s

.NOTPARALLEL:
.PHONY: build test deps fmt vet lint tidy unit ratios e2e fuzz bench clean

build: ## the binary, in bin/
	$(GO) build -trimpath -o bin/foldgate ./cmd/foldgate

test: deps fmt vet lint tidy unit ratios e2e ## everything; under 15 minutes on two cores
	@echo "make test: passed"

deps: ## node packages by npm ci, a C compiler and node by apt-get where missing
	@.ci/deps

fmt:
	@echo "== gofmt"
	@bad="$$(gofmt -l $$(find . -name '*.go' -not -path '*/node_modules/*'))" || exit 1; \
	if [ -n "$$bad" ]; then echo "not formatted, run gofmt -w:"; echo "$$bad"; exit 1; fi

vet:
	@echo "== go vet"
	@$(GO) vet -tags e2e ./...

lint:
	@echo "== staticcheck"
	@$(TOOL) staticcheck -tags e2e ./...

tidy:
	@echo "== go mod tidy"
	@$(GO) mod tidy -diff

unit:
	@echo "== unit tests"
	@$(GO) test -race -timeout 10m ./...

ratios: ## speed, as ratios to other libraries in one run; the race detector would change them
	@echo "== ratios"
	@$(GO) test -count 1 -p 1 -run '^TestRatio' -v ./budget ./interceptor/scrub ./proxy

e2e: deps ## the binary against real clients and servers
	@echo "== end-to-end tests"
	@$(GO) test -race -tags e2e -timeout 25m -count 1 -p 1 -v ./test/...

fuzz: ## every fuzz target for FUZZTIME
	@.ci/fuzz $(FUZZTIME)

bench: deps ## what the gateway adds to a call, beside other forwarders; some minutes
	$(GO) run ./test/bench $(BENCH)

clean:
	rm -rf bin test/npm/node_modules
