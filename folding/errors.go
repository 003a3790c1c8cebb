package folding

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// ErrorKind is a class of errors that a program can branch on. The sentinels below are kinds;
// each error of this package matches exactly one of them.
type ErrorKind struct {
	// Code is a short stable name, such as branch_not_found. Status is the HTTP status for it.
	Code   string
	Status int
	Text   string
}

// Error returns the text.
func (k *ErrorKind) Error() string { return k.Text }

// Sentinels for errors.Is. The errors that match them say what to do next.
var (
	// ErrInvalidInput is an argument outside its limits (400).
	ErrInvalidInput error = &ErrorKind{"invalid_input", http.StatusBadRequest, "invalid input"}
	// ErrMaxDepthExceeded is a branch below the deepest allowed (400). The same request can never
	// succeed, since a parent's depth does not change.
	ErrMaxDepthExceeded error = &ErrorKind{"max_depth_exceeded", http.StatusBadRequest, "maximum branch depth exceeded"}
	// ErrForbidden is a session that the caller may not use (403).
	ErrForbidden error = &ErrorKind{"forbidden", http.StatusForbidden, "forbidden"}
	// ErrNotFound is a branch that is unknown, deleted or not the caller's (404). All three get
	// the same text, so that a caller can't tell them apart.
	ErrNotFound error = &ErrorKind{"branch_not_found", http.StatusNotFound, "branch not found"}
	// ErrNotActive is a branch of the caller that has ended (409). The error is an [*EndedError].
	ErrNotActive error = &ErrorKind{"branch_not_active", http.StatusConflict, "branch not active"}
	// ErrBudgetExhausted is an amount over what a branch has left (409).
	ErrBudgetExhausted error = &ErrorKind{"budget_exhausted", http.StatusConflict, "budget exhausted"}
	// ErrRateLimited is a session that creates branches too fast (429).
	ErrRateLimited error = &ErrorKind{"rate_limited", http.StatusTooManyRequests, "rate limited"}
	// ErrTooManyBranches is the limit of open branches of a session (429).
	ErrTooManyBranches error = &ErrorKind{"too_many_branches", http.StatusTooManyRequests, "too many open branches"}
	// ErrInstanceFull is the limit of open branches of the process (429).
	ErrInstanceFull error = &ErrorKind{"instance_full", http.StatusTooManyRequests, "instance is full"}
	// ErrScrubbingFailed is a text that could not be scrubbed and was withheld (500).
	ErrScrubbingFailed error = &ErrorKind{"scrubbing_failed", http.StatusInternalServerError, "scrubbing failed"}
	// ErrStorage is a change that could not be made durable (500).
	ErrStorage error = &ErrorKind{"storage_failed", http.StatusInternalServerError, "storage failed"}
	// ErrClosed is a Manager after Close (500).
	ErrClosed error = &ErrorKind{"shutting_down", http.StatusInternalServerError, "foldgate is shutting down"}
)

// Errorf returns an error of a kind. The text says what happened and what to do next. It is
// formatted as by fmt.Errorf, %w included.
func Errorf(kind error, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &failure{kind: kind, cause: errors.Unwrap(err), text: err.Error()}
}

// hiding is Errorf with a cause that is not part of the text.
func hiding(cause, kind error, format string, args ...any) error {
	return &failure{kind: kind, cause: cause, text: fmt.Sprintf(format, args...)}
}

// failAfter is Errorf for a request that can succeed after a wait.
func failAfter(kind error, wait time.Duration, format string, args ...any) error {
	return &failure{kind: kind, retry: wait, text: fmt.Sprintf(format, args...)}
}

type failure struct {
	kind, cause error
	text        string
	retry       time.Duration
}

func (f *failure) Error() string { return f.text }

func (f *failure) Unwrap() []error {
	if f.cause == nil {
		return []error{f.kind}
	}
	return []error{f.kind, f.cause}
}

// EndedError says how a branch ended. It is the error for a use of an ended branch, and the cause
// with which the contexts of its calls are cancelled. It matches [ErrNotActive].
type EndedError struct {
	BranchID string
	Status   Status
	// Reason is a Reason constant; "" after a normal return.
	Reason string
	// Why is the sentence for an end by the operator, with their reason; else "".
	Why string
	// Digest is the digest of the branch; "" after a normal return.
	Digest string
}

// Error tells an agent what happened and what to do.
func (e *EndedError) Error() string {
	text := fmt.Sprintf("branch %s has ended: %s", e.BranchID, e.Status)
	if reason := cmp.Or(e.Why, e.Reason); reason != "" && reason != string(e.Status) {
		text += " (" + reason + ")"
	}
	if e.Digest != "" {
		text += "; " + e.Digest
	}
	return text + "; go on without it, or create a new one with branch_create"
}

// Unwrap returns [ErrNotActive].
func (e *EndedError) Unwrap() error { return ErrNotActive }

// StatusCode returns the HTTP status of an error: 400, 403, 404, 409, 429, or 500 for all others.
// It is 0 for nil.
func StatusCode(err error) int { return kindOf(err).Status }

// Code returns the short stable name of an error, such as branch_not_found. It is internal_error
// for errors of other packages and "" for nil.
func Code(err error) string { return kindOf(err).Code }

func kindOf(err error) *ErrorKind {
	if k, ok := errors.AsType[*ErrorKind](err); ok || err == nil {
		return cmp.Or(k, &ErrorKind{})
	}
	return &ErrorKind{Code: "internal_error", Status: http.StatusInternalServerError}
}

// RetryAfter returns the wait after which the same request can succeed. It is zero if that is
// unknown or waiting does not help.
func RetryAfter(err error) time.Duration {
	if f, ok := errors.AsType[*failure](err); ok {
		return f.retry
	}
	return 0
}

// Seconds rounds a wait up to whole seconds, as in retry_after_seconds.
func Seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }
