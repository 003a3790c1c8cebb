package folding

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"
)

// Get returns a result to a caller who stands at the context path at: in the
// branch the result belongs to, in one above it or in one below. strict binds a
// result to the session it was made in. A handle of somebody else is unknown;
// one that was evicted says so.
func (r *Results) Get(ctx context.Context, caller Caller, strict bool, at, handle string) (StoredResult, error) {
	s, err := r.find(ctx, caller, strict, handle)
	if err != nil {
		return StoredResult{}, err
	}
	if !onOneLine(at, s.Context) {
		return StoredResult{}, unknownResult(handle)
	}
	return s, nil
}

// find is Get without regard to branches.
func (r *Results) find(ctx context.Context, caller Caller, strict bool, handle string) (StoredResult, error) {
	if !isHandle(handle) {
		return StoredResult{}, unknownResult(handle)
	}
	s := StoredResult{Handle: handle}
	var created int64
	err := r.db.QueryRowContext(ctx, `SELECT principal, session, context, server, tool, kind, text, structured, tokens, delivered, created_at
		FROM results WHERE handle = ?`, handle).Scan(&s.Principal, &s.Session, &s.Context, &s.Server, &s.Tool, &s.Kind, &s.Text, &s.Structured,
		&s.Tokens, &s.Delivered, &created)
	if errors.Is(err, sql.ErrNoRows) {
		return StoredResult{}, r.gone(ctx, caller, strict, handle)
	} else if err != nil {
		return StoredResult{}, failWith(ErrStorage, err, "stored result %s could not be read: %v", handle, err)
	}
	s.CreatedAt = time.UnixMicro(created).UTC()
	switch {
	case !caller.owns(strict, s.Principal, s.Session):
		return StoredResult{}, unknownResult(handle)
	case r.cfg.Now().Sub(s.CreatedAt) > r.cfg.TTL:
		return StoredResult{}, goneResult(handle, s.Tool, "age")
	}
	return s, nil
}

// Place returns the context path of a result, to find out which branch a read
// of it is made in. See [Results.Get] for strict and the errors.
func (r *Results) Place(ctx context.Context, caller Caller, strict bool, handle string) (string, error) {
	if !isHandle(handle) {
		return "", unknownResult(handle)
	}
	var principal, session, path string
	err := r.db.QueryRowContext(ctx, "SELECT principal, session, context FROM results WHERE handle = ?", handle).Scan(&principal, &session, &path)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return "", r.gone(ctx, caller, strict, handle)
	case err != nil:
		return "", failWith(ErrStorage, err, "stored result %s could not be looked up: %v", handle, err)
	case !caller.owns(strict, principal, session):
		return "", unknownResult(handle)
	}
	return path, nil
}

// gone says why there is no such result.
func (r *Results) gone(ctx context.Context, caller Caller, strict bool, handle string) error {
	var principal, session, tool, why string
	err := r.db.QueryRowContext(ctx, "SELECT principal, session, tool, why FROM gone WHERE handle = ?", handle).Scan(&principal, &session, &tool, &why)
	switch {
	case errors.Is(err, sql.ErrNoRows), err == nil && !caller.owns(strict, principal, session):
		return unknownResult(handle)
	case err != nil:
		return failWith(ErrStorage, err, "stored result %s could not be looked up: %v", handle, err)
	}
	return goneResult(handle, tool, why)
}

// owns reports whether a result of a principal's session is the caller's.
func (c Caller) owns(strict bool, principal, session string) bool {
	return principal == c.Principal && (!strict || session == c.Session)
}

func unknownResult(handle string) error {
	return fail(ErrResultUnknown, "no stored result %q: use the handle that a folded result names", cut(clean(handle), 64))
}

func goneResult(handle, tool, why string) error {
	limit := map[string]string{"quota": "the store was full (results.quota_mb)", "age": "it was too old (results.ttl_hours)"}[why]
	return fail(ErrResultGone, "stored result %s was evicted: %s; call %s again", handle, limit, tool)
}

// onOneLine reports whether one of two context paths is the other or above it.
func onOneLine(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	return a == "" || a == b || strings.HasPrefix(b, a+"/")
}
