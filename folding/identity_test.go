package folding_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/foldgate/foldgate/folding"
)

// Unknown, deleted and foreign ids get the same text.
func TestOneAnswerForWhatIsNotYours(t *testing.T) {
	clock := newManual()
	m, _ := open(t, roomy(), folding.Options{Now: clock.now})
	foreign := create(t, m, bob, folding.CreateRequest{}).ID
	expired := create(t, m, alice, folding.CreateRequest{}).ID
	if _, err := m.Return(ctx, alice, expired, ""); err != nil {
		t.Fatal(err)
	}
	clock.advance(24*time.Hour + time.Microsecond)
	foreignLive := create(t, m, bob, folding.CreateRequest{}).ID

	ids := []string{"br_" + uuid.NewString(), foreign, foreignLive, expired, "br_", "", "'; DROP TABLE branches", "br_\x00\u202e"}
	for _, id := range ids {
		want := "no branch : use the branch_id that branch_create returned, or create a branch"
		check := func(what string, err error) {
			t.Helper()
			if !errors.Is(err, folding.ErrNotFound) || folding.StatusCode(err) != 404 || folding.Code(err) != "branch_not_found" {
				t.Errorf("%s(%q) = %v, want ErrNotFound", what, id, err)
				return
			}
			text := err.Error()
			i, j := strings.IndexByte(text, '"'), strings.LastIndexByte(text, '"')
			if got := text[:i] + text[j+1:]; got != want {
				t.Errorf("%s(%q): %q, want %q", what, id, got, want)
			}
		}
		_, err := m.Resolve(alice, id)
		check("Resolve", err)
		_, err = m.Return(ctx, alice, id, "message")
		check("Return", err)
		if id != "" {
			_, err = m.Create(ctx, alice, folding.CreateRequest{Description: "d", ParentID: id})
			check("Create below", err)
			if _, ok, err := m.Status(ctx, alice, folding.StatusRequest{BranchID: id}); ok || err != nil {
				t.Errorf("Status(%q) = %v, %v; want nothing", id, ok, err)
			}
		}
	}
	if b, err := m.Resolve(bob, foreignLive); err != nil || b.ID != foreignLive {
		t.Errorf("Resolve by its owner = %v", err)
	}
}

// A subagent on a connection of its own may use a branch by its id.
func TestPermissiveSharesBranchesAmongConnections(t *testing.T) {
	m, _ := open(t, roomy(), folding.Options{})
	b := create(t, m, alice, folding.CreateRequest{})
	sub := folding.Caller{Principal: "alice", Session: "s2"}
	if _, err := m.Resolve(sub, b.ID); err != nil {
		t.Errorf("Resolve from another connection: %v", err)
	}
	child := create(t, m, sub, folding.CreateRequest{ParentID: b.ID})
	if child.Session != "s1" || child.Origin != "s2" {
		t.Errorf("child session %q origin %q, want s1, s2", child.Session, child.Origin)
	}
	if _, err := m.Return(ctx, sub, b.ID, ""); err != nil {
		t.Errorf("Return from another connection: %v", err)
	}
}

func TestStrictBindsBranchesToTheirSession(t *testing.T) {
	cfg := roomy()
	cfg.SessionValidation = folding.ValidationStrict
	m, _ := open(t, cfg, folding.Options{})
	b := create(t, m, alice, folding.CreateRequest{SessionID: "s1"})
	for _, other := range []string{"", "s", "s12", "S1", "s2"} {
		c := folding.Caller{Principal: "alice", Session: other}
		_, err := m.Resolve(c, b.ID)
		wantErr(t, "Resolve from session "+other, err, folding.ErrNotFound)
		_, err = m.Return(ctx, c, b.ID, "")
		wantErr(t, "Return from session "+other, err, folding.ErrNotFound)
		_, err = m.Create(ctx, c, folding.CreateRequest{Description: "d", SessionID: "s1"})
		wantErr(t, "Create in s1 from session "+other, err, folding.ErrForbidden)
		if folding.StatusCode(err) != 403 {
			t.Errorf("status code %d, want 403", folding.StatusCode(err))
		}
		for _, req := range []folding.StatusRequest{{BranchID: b.ID}, {SessionID: "s1"}} {
			if _, ok, err := m.Status(ctx, c, req); ok || err != nil {
				t.Errorf("Status(%+v) from session %q = %v, %v; want nothing", req, other, ok, err)
			}
		}
	}
	if _, err := m.Return(ctx, alice, b.ID, ""); err != nil {
		t.Errorf("Return from its own session: %v", err)
	}
}

func TestRequireSessionID(t *testing.T) {
	cfg := roomy()
	cfg.RequireSessionID = true
	m, _ := open(t, cfg, folding.Options{})
	_, err := m.Create(ctx, alice, folding.CreateRequest{Description: "d"})
	wantErr(t, "Create without session_id", err, folding.ErrInvalidInput)
	create(t, m, alice, folding.CreateRequest{SessionID: "s1"})
}

func TestActiveLeaf(t *testing.T) {
	m, _ := open(t, roomy(), folding.Options{})
	want := func(id string, leaves int) {
		t.Helper()
		if b, n := m.ActiveLeaf(alice); b.ID != id || n != leaves {
			t.Errorf("ActiveLeaf = %q, %d; want %q, %d", b.ID, n, id, leaves)
		}
	}
	want("", 0)
	p := create(t, m, alice, folding.CreateRequest{})
	want(p.ID, 1)
	c := create(t, m, alice, folding.CreateRequest{ParentID: p.ID})
	want(c.ID, 1)
	labelled := create(t, m, alice, folding.CreateRequest{SessionID: "my-session"}) // on alice's connection
	want(labelled.ID, 2)
	create(t, m, bob, folding.CreateRequest{})
	want(labelled.ID, 2)
	if b, ok, err := m.Status(ctx, alice, folding.StatusRequest{SessionID: "my-session"}); b.ID != labelled.ID || !ok || err != nil {
		t.Errorf("Status of my-session = %q, %v, %v", b.ID, ok, err)
	}
	for _, id := range []string{labelled.ID, c.ID} {
		if _, err := m.Return(ctx, alice, id, ""); err != nil {
			t.Fatal(err)
		}
	}
	want(p.ID, 1)
	if _, n := m.ActiveLeaf(folding.Caller{Principal: "alice"}); n != 0 {
		t.Errorf("ActiveLeaf without a session: %d leaves, want 0", n)
	}
}

func TestStatusNeedsAName(t *testing.T) {
	m, _ := open(t, roomy(), folding.Options{})
	_, _, err := m.Status(ctx, folding.Caller{Principal: "alice"}, folding.StatusRequest{})
	wantErr(t, "Status of nothing", err, folding.ErrInvalidInput)
	if _, ok, err := m.Status(ctx, alice, folding.StatusRequest{}); ok || err != nil {
		t.Errorf("Status of an idle session = %v, %v; want nothing", ok, err)
	}
	b := create(t, m, alice, folding.CreateRequest{})
	if _, ok, _ := m.Status(ctx, alice, folding.StatusRequest{BranchID: b.ID, SessionID: "other"}); ok {
		t.Error("Status of a branch in a session it is not in: found")
	}
}

func TestEndSession(t *testing.T) {
	m, rec := open(t, roomy(), folding.Options{})
	p := create(t, m, alice, folding.CreateRequest{})
	c := create(t, m, alice, folding.CreateRequest{ParentID: p.ID})
	labelled := create(t, m, alice, folding.CreateRequest{SessionID: "my-session"})
	others := []folding.Branch{
		create(t, m, bob, folding.CreateRequest{}),
		create(t, m, folding.Caller{Principal: "alice", Session: "s2"}, folding.CreateRequest{}),
	}
	call := begin(t, m, c.ID)
	if err := m.EndSession(ctx, alice, "connection\x00 closed"); err != nil {
		t.Fatal(err)
	}
	if got := rec.ends(); len(got) != 3 || got[0] != c.ID {
		t.Errorf("ends = %v, want the grandchild %s first of three", got, c.ID)
	}
	for _, b := range []folding.Branch{p, c, labelled} {
		got := status(t, m, alice, b.ID)
		if got.Status != folding.StatusFailed || got.Reason != folding.ReasonSessionEnded || got.Error != "session ended: connection closed" || got.Digest == "" {
			t.Errorf("%s: %s, %s, %q, %q", b.ID, got.Status, got.Reason, got.Error, got.Digest)
		}
	}
	if call.Err() == nil {
		t.Error("the call in flight goes on")
	}
	for _, b := range others {
		if got := status(t, m, folding.Caller{Principal: b.Principal}, b.ID); got.Status != folding.StatusActive {
			t.Errorf("branch of %s on %s: %s, want active", b.Principal, b.Session, got.Status)
		}
	}
	if err := m.EndSession(ctx, alice, "again"); err != nil {
		t.Errorf("second EndSession: %v", err)
	}
	if err := m.EndSession(ctx, folding.Caller{Principal: "bob"}, "no session"); err != nil {
		t.Errorf("EndSession without a session: %v", err)
	}
}
