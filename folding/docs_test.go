package folding

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The documentation names every error, reason and limit.
func TestDocs(t *testing.T) {
	raw, err := os.ReadFile("../docs/folding.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(raw)
	var want []string
	for _, err := range []error{ErrInvalidInput, ErrMaxDepthExceeded, ErrForbidden, ErrNotFound, ErrNotActive, ErrBudgetExhausted,
		ErrRateLimited, ErrTooManyBranches, ErrInstanceFull, ErrScrubbingFailed, ErrStorage, ErrClosed} {
		want = append(want, fmt.Sprintf("| `%s` | %d |", Code(err), StatusCode(err)))
	}
	for _, reason := range []string{ReasonTimeout, ReasonBudgetExhausted, ReasonParentReturning, ReasonParentEnded, ReasonSessionEnded, ReasonShutdown, ReasonStorageFailed} {
		want = append(want, "`"+reason+"`")
	}
	c := DefaultConfig()
	want = append(want,
		fmt.Sprintf("default_budget: %d ", c.DefaultBudget),
		fmt.Sprintf("max_budget: %d ", c.MaxBudget),
		fmt.Sprintf("max_depth: %d ", c.MaxDepth),
		fmt.Sprintf("default_timeout_seconds: %d\n", c.DefaultTimeoutSeconds),
		fmt.Sprintf("max_timeout_seconds: %d ", c.MaxTimeoutSeconds),
		fmt.Sprintf("max_concurrent_per_session: %d\n", c.MaxConcurrentPerSession),
		fmt.Sprintf("max_concurrent_per_instance: %d\n", c.MaxConcurrentPerInstance),
		fmt.Sprintf("max_branches_per_minute: %d ", c.MaxBranchesPerMinute),
		fmt.Sprintf("max_branches_per_minute_per_principal: %d ", c.MaxBranchesPerMinutePerPrincipal),
		fmt.Sprintf("session_cleanup_seconds: %d\n", c.SessionCleanupSeconds),
		fmt.Sprintf("retention: %.0fh ", c.Retention.Hours()),
		fmt.Sprintf("require_session_id: %v\n", c.RequireSessionID),
		fmt.Sprintf("session_validation: %s ", c.SessionValidation),
		"| `description` | 500 characters |", "| `prompt` | 10,000 characters |", "| `message` | 50,000 characters |", "255 bytes",
	)
	for _, s := range want {
		if !strings.Contains(page, s) {
			t.Errorf("docs/folding.md lacks %q", s)
		}
	}
}

// Every test that the documentation names exists.
func TestDocsNameTests(t *testing.T) {
	page, err := os.ReadFile("../docs/folding.md")
	if err != nil {
		t.Fatal(err)
	}
	var tests strings.Builder
	for _, dir := range []string{".", "../proxy", "../test/e2e"} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			tests.Write(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	names := regexp.MustCompile("`((?:Test|Benchmark)[A-Za-z0-9]+)`").FindAllStringSubmatch(string(page), -1)
	if len(names) < 40 {
		t.Errorf("the page names %d tests, want the evidence of every requirement", len(names))
	}
	for _, m := range names {
		if !strings.Contains(tests.String(), "\nfunc "+m[1]+"(") {
			t.Errorf("docs/folding.md names %s, which does not exist", m[1])
		}
	}
}
