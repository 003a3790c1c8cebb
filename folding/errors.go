package folding

import (
	"errors"
	"fmt"
	"net/http"
	"time"
)

// kind is one class of failure: what a program branches on. The sentinels
// below are kinds; an error of this package wraps exactly one.
type kind struct {
	code   string
	status int
	text   string
}

func (k *kind) Error() string { return k.text }

// Sentinels for errors.Is. The errors that wrap them say what to do next.
var (
	// ErrInvalidInput is an argument outside its limits (400).
	ErrInvalidInput error = &kind{"invalid_input", http.StatusBadRequest, "invalid input"}
	// ErrMaxDepthExceeded is a branch below the deepest allowed (400): the
	// same request can never succeed, since a parent's depth does not change.
	ErrMaxDepthExceeded error = &kind{"max_depth_exceeded", http.StatusBadRequest, "maximum branch depth exceeded"}
	// ErrForbidden is a session that is not the caller's (403).
	ErrForbidden error = &kind{"forbidden", http.StatusForbidden, "forbidden"}
	// ErrNotFound is a branch that is unknown, archived or someone else's
	// (404): these three are deliberately one answer.
	ErrNotFound error = &kind{"branch_not_found", http.StatusNotFound, "branch not found"}
	// ErrNotActive is a branch of one's own that has ended (409). Such an
	// error is an [*EndedError].
	ErrNotActive error = &kind{"branch_not_active", http.StatusConflict, "branch not active"}
	// ErrBudgetExhausted is an amount over what a branch has left (409).
	ErrBudgetExhausted error = &kind{"budget_exhausted", http.StatusConflict, "budget exhausted"}
	// ErrRateLimited is a session that creates branches too fast (429).
	ErrRateLimited error = &kind{"rate_limited", http.StatusTooManyRequests, "rate limited"}
	// ErrTooManyBranches is the limit of open branches of a session (429).
	ErrTooManyBranches error = &kind{"too_many_branches", http.StatusTooManyRequests, "too many open branches"}
	// ErrInstanceFull is the limit of open branches of the process (429).
	ErrInstanceFull error = &kind{"instance_full", http.StatusTooManyRequests, "instance is full"}
	// ErrScrubbingFailed is a text that could not be scrubbed and therefore
	// goes nowhere (500).
	ErrScrubbingFailed error = &kind{"scrubbing_failed", http.StatusInternalServerError, "scrubbing failed"}
	// ErrStorage is a change that could not be made durable (500).
	ErrStorage error = &kind{"storage_failed", http.StatusInternalServerError, "storage failed"}
	// ErrClosed is a Manager after Close (500).
	ErrClosed error = &kind{"shutting_down", http.StatusInternalServerError, "foldgate is shutting down"}
)

// failure is one occurrence of a kind.
type failure struct {
	kind  error
	text  string
	retry time.Duration
	cause error
}

func (f *failure) Error() string { return f.text }

func (f *failure) Unwrap() []error {
	if f.cause == nil {
		return []error{f.kind}
	}
	return []error{f.kind, f.cause}
}

func fail(kind error, format string, args ...any) error {
	return &failure{kind: kind, text: fmt.Sprintf(format, args...)}
}

func failAfter(kind error, retry time.Duration, format string, args ...any) error {
	return &failure{kind: kind, text: fmt.Sprintf(format, args...), retry: retry}
}

func failWith(kind, cause error, format string, args ...any) error {
	return &failure{kind: kind, cause: cause, text: fmt.Sprintf(format, args...)}
}

// EndedError says that a branch has ended, and how. It is the cause with which
// the context of a call in flight is cancelled, and what a use of an ended
// branch returns. It matches [ErrNotActive].
type EndedError struct {
	BranchID string
	Status   Status
	// Reason is one of the Reason constants; "" after a normal return.
	Reason string
	// Digest is what a forced end left for the parent to read; "" after a
	// normal return and in the cause of a cancelled call.
	Digest string
}

// Error tells an agent what happened and what to do.
func (e *EndedError) Error() string {
	text := fmt.Sprintf("branch %s has ended: %s", e.BranchID, e.Status)
	if e.Reason != "" {
		text += " (" + e.Reason + ")"
	}
	if e.Digest != "" {
		text += "; " + e.Digest
	}
	return text + "; go on without it, or create a new one with branch_create"
}

// Is matches ErrNotActive.
func (e *EndedError) Is(target error) bool { return target == ErrNotActive }

// StatusCode returns the HTTP status that seed clients know an error by: 400,
// 403, 404, 409, 429, or 500 for all others. It is 0 for nil.
func StatusCode(err error) int {
	switch k := kindOf(err); {
	case err == nil:
		return 0
	case k == nil:
		return http.StatusInternalServerError
	default:
		return k.status
	}
}

// Code returns the short stable name of an error, such as branch_not_found;
// internal_error for errors of others, "" for nil.
func Code(err error) string {
	switch k := kindOf(err); {
	case err == nil:
		return ""
	case k == nil:
		return "internal_error"
	default:
		return k.code
	}
}

// RetryAfter returns how long to wait before the same request can succeed, as
// far as that is known: rounded up to seconds where it is sent to a client. It
// is zero for errors that waiting does not cure.
func RetryAfter(err error) time.Duration {
	if f, ok := errors.AsType[*failure](err); ok {
		return f.retry
	}
	return 0
}

// Seconds rounds a wait up to whole seconds, as retry_after_seconds has it.
func Seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

func kindOf(err error) *kind {
	if k, ok := errors.AsType[*kind](err); ok {
		return k
	}
	if errors.Is(err, ErrNotActive) {
		return ErrNotActive.(*kind)
	}
	return nil
}
