package trace

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"

	"github.com/foldgate/foldgate/folding/contextpath"
)

// The ids of OpenTelemetry spans are derived from the journal's ids. So the spans that are
// exported live and those that `foldgate trace --format otlp` makes later have the same ids, and
// foldgate can tell an upstream its parent span while no exporter runs.

// SpanID returns the span id of a call, by the id of its request's record.
func SpanID(record string) [8]byte {
	sum := sha256.Sum256([]byte("span:" + record))
	return [8]byte(sum[:8])
}

// BranchSpanID returns the span id of a branch, by its context path.
func BranchSpanID(context string) [8]byte { return SpanID("branch:" + context) }

// BranchOf returns the branch of a context path: the path without the
// sub-context that a host may have added below.
func BranchOf(context string) string {
	p := contextpath.Path(context)
	for p != contextpath.Main && !strings.HasPrefix(p.Leaf(), "br_") {
		p = p.Parent()
	}
	return string(p)
}

// TraceID returns the id of the OpenTelemetry trace of a call or branch without
// a traceparent. There is one trace for each tree of branches, else one for each
// session, else one for the call alone.
func TraceID(record, principal, session, context string) [16]byte {
	key := record
	if root := contextpath.Path(context).Root(); root != contextpath.Main {
		key = string(root)
	} else if session != "" {
		key = principal + "\x00" + session
	}
	sum := sha256.Sum256([]byte("trace:" + key))
	return [16]byte(sum[:16])
}

// Traceparent is a W3C trace context, version 00 (Trace Context, section 3.2).
type Traceparent struct {
	Trace  [16]byte
	Parent [8]byte
	Flags  byte // 1: the parent was sampled
}

// ParseTraceparent reads a traceparent. Of later versions it reads the first four fields, as the
// standard asks. ok is false for forms that the standard forbids.
func ParseTraceparent(s string) (tp Traceparent, ok bool) {
	m := traceparentForm.FindStringSubmatch(s)
	if m == nil || m[1] == "ff" || m[1] == "00" && m[5] != "" {
		return tp, false
	}
	id, _ := hex.DecodeString(m[2] + m[3] + m[4]) // the form has hexadecimal digits only
	tp = Traceparent{[16]byte(id), [8]byte(id[16:]), id[24]}
	if tp.Trace == [16]byte{} || tp.Parent == [8]byte{} {
		return Traceparent{}, false
	}
	return tp, true
}

var traceparentForm = regexp.MustCompile(`(?s)^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$`)

// String returns the traceparent that is sent on, with the flags of version 00.
func (tp Traceparent) String() string {
	out := make([]byte, 0, 55)
	out = append(hex.AppendEncode(append(out, "00-"...), tp.Trace[:]), '-')
	out = append(hex.AppendEncode(out, tp.Parent[:]), '-')
	return string(hex.AppendEncode(out, []byte{tp.Flags & 0x03}))
}
