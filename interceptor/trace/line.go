package trace

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// A line is an object. Its hash covers the members before the hash, among them the digest of the
// payload. Behind the hash are the payload and its salt, which can go without a trace in the hash.
const (
	hashPrefix = "sha256:" // names the hash in prev, hash and digest
	hashLen    = len(hashPrefix) + 2*sha256.Size
	genesis    = hashPrefix + "0000000000000000000000000000000000000000000000000000000000000000" // the prev of record 1
	hashMember = `,"hash":"`
	saltMember = `,"salt":"`
	saltBytes  = 16
	payloadKey = `,"payload":`
	lineEnd    = "}\n"
)

// AppendLine appends the record's line as it stands in the journal, with the
// hash that the record claims and with its newline.
func (r *Record) AppendLine(b []byte) ([]byte, error) {
	start := len(b)
	b, err := appendAuditMember(appendEnvelope(b, r), r)
	if err != nil {
		return nil, err
	}
	b, _ = appendChain(b, start, r.Seq, r.Prev)
	copy(b[len(b)-hashLen-1:], r.Hash)
	if len(r.Payload) > 0 {
		b = append(append(append(b, saltMember...), r.Salt...), '"')
		b = append(append(b, payloadKey...), r.Payload...)
	}
	return append(b, lineEnd...), nil
}

// appendEnvelope appends the members of the envelope, without the payload, and the digest if it is known.
func appendEnvelope(b []byte, r *Record) []byte {
	b = rawjson.AppendQuote(append(b, `{"protocol":`...), r.Protocol)
	b = rawjson.AppendQuote(append(b, `,"id":`...), r.ID)
	b = rawjson.AppendQuote(append(b, `,"ts":`...), r.TS)
	b = rawjson.AppendQuote(append(b, `,"from":`...), r.From)
	b = appendStrings(b, `,"to":`, r.To)
	b = rawjson.AppendQuote(append(b, `,"kind":`...), r.Kind)
	b = appendStrings(b, `,"correlationId":`, r.CorrelationID)
	if r.Context != "" {
		b = rawjson.AppendQuote(append(b, `,"context":`...), r.Context)
	}
	if r.Digest != "" {
		b = rawjson.AppendQuote(append(b, `,"digest":`...), r.Digest)
	}
	return b
}

// appendAuditMember appends the audit, the member between the digest and the chain fields.
func appendAuditMember(b []byte, r *Record) ([]byte, error) {
	if r.Audit == nil {
		return b, nil
	}
	const member = `,"audit":`
	start := len(b)
	b, err := appendAudit(append(b, member...), r.Audit)
	if err != nil {
		return nil, fmt.Errorf("audit of %s: %w", r.ID, err)
	}
	if len(b) == start+len(member+"{}") {
		b = b[:start]
	}
	return b, nil
}

func appendStrings(b []byte, key string, values []string) []byte {
	if len(values) == 0 {
		return b
	}
	b = append(append(b, key...), '[')
	for _, v := range values {
		b = append(rawjson.AppendQuote(b, v), ',')
	}
	b[len(b)-1] = ']'
	return b
}

// appendChain appends seq, prev and hash to the line that begins at b[start], and returns b and the
// hash. The hash covers the line up to it, closed by a brace.
func appendChain(b []byte, start int, seq uint64, prev string) (line []byte, hash string) {
	b = strconv.AppendUint(append(b, `,"seq":`...), seq, 10)
	b = append(append(b, `,"prev":"`...), prev...)
	b = append(b, `"}`...)
	sum := sha256.Sum256(b[start:])
	b = append(append(b[:len(b)-1], hashMember...), hashPrefix...)
	b = hex.AppendEncode(b, sum[:])
	hash = string(b[len(b)-hashLen:])
	return append(b, '"'), hash
}

// appendPayload appends the members behind the hash, and returns b and their digest: the hash of
// the object that they are alone. salt is random, so that nobody finds the payload from the digest.
func appendPayload(b []byte, salt [saltBytes]byte, pieces ...[]byte) (line []byte, digest [sha256.Size]byte) {
	start := len(b)
	b = hex.AppendEncode(append(b, saltMember...), salt[:])
	b = append(append(b, '"'), payloadKey...)
	for _, p := range pieces {
		b = append(b, p...)
	}
	b = append(b, '}')
	b[start] = '{'
	digest = sha256.Sum256(b[start:])
	b[start] = ','
	return b[:len(b)-1], digest
}

// proof is what a line claims of itself, and what its bytes give.
type proof struct {
	claimed, actual string // hashes
	digest          string // of the members behind the hash, "" if there are none
	end             int    // of the hash, behind its quote: there an erased line is closed
}

// proofOf returns the proof of a line without its newline, the zero one if its hash is not in its place.
func proofOf(line []byte) (p proof) {
	at := bytes.Index(line, []byte(hashMember)) // a string before it would have it escaped
	p.end = at + len(hashMember) + hashLen + 1
	if at <= 0 || p.end >= len(line) || !bytes.HasPrefix(line[at:], []byte(hashMember)) || line[p.end-1] != '"' || line[len(line)-1] != '}' {
		return proof{}
	}
	p.claimed = string(line[at+len(hashMember) : p.end-1])
	p.actual = hashOf(line[:at], []byte("}"))
	if p.end < len(line)-1 {
		p.digest = hashOf([]byte("{"), line[p.end+1:])
	}
	return p
}

// WithoutPayload returns a line without payload and salt, as [Journal.Erase] leaves it: its hash can
// still be checked.
func WithoutPayload(line []byte) []byte {
	if p := proofOf(line); p.end > 0 {
		return append(line[:p.end:p.end], '}')
	}
	return line
}

func hashOf(parts ...[]byte) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write(p)
	}
	return hashPrefix + hex.EncodeToString(h.Sum(nil))
}

// intact reports whether a record that was read from the line is as it was written, or erased.
func (p proof) intact(r *Record) bool {
	return p.end > 0 && p.claimed == p.actual && p.claimed == r.Hash && (p.digest == "" || p.digest == r.Digest)
}

// ParseLine reads one line of a journal, without its newline. intact reports whether its hash is
// right, and the digest of its payload, if it is not erased. It does not check the place in the chain.
func ParseLine(line []byte) (r *Record, intact bool, err error) {
	r, p, err := parseLine(line)
	return r, err == nil && p.intact(r), err
}

func parseLine(line []byte) (r *Record, p proof, err error) {
	r = new(Record)
	if err := json.Unmarshal(line, r); err != nil {
		return nil, p, fmt.Errorf("record: %w", err)
	}
	switch {
	case r.Protocol != Protocol:
		return r, p, fmt.Errorf("record: protocol %.40q is not %s", r.Protocol, Protocol)
	case r.ID == "" || r.Kind == "" || r.Seq == 0:
		return r, p, errors.New("record: id, kind or seq is missing")
	}
	return r, proofOf(line), nil
}

// intactRecord returns the record in line, nil unless it is intact.
func intactRecord(line []byte) *Record {
	if r, intact, _ := ParseLine(line); intact {
		return r
	}
	return nil
}
