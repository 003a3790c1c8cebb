package trace

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// hashPrefix names the hash in prev and hash; genesis is the prev of record 1.
const (
	hashPrefix = "sha256:"
	hashLen    = len(hashPrefix) + 2*sha256.Size
	genesis    = hashPrefix + "0000000000000000000000000000000000000000000000000000000000000000"
	hashMember = `,"hash":"`
	lineTail   = len(hashMember) + hashLen + len("\"}\n") // from the hash member to the end of the line
)

const payloadKey = `,"payload":`

// AppendLine appends the record's line as it stands in the journal, with the
// hash that the record claims and with its newline.
func (r *Record) AppendLine(b []byte) ([]byte, error) {
	start := len(b)
	b = appendHead(b, r)
	if len(r.Payload) > 0 {
		b = append(append(b, payloadKey...), r.Payload...)
	}
	b, err := appendTail(b, r)
	if err != nil {
		return nil, err
	}
	b, _ = appendChain(b, start, r.Seq, r.Prev)
	copy(b[len(b)-lineTail+len(hashMember):], r.Hash)
	return b, nil
}

func appendHead(b []byte, r *Record) []byte {
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
	return b
}

// appendTail appends the members between the payload and the chain fields.
func appendTail(b []byte, r *Record) ([]byte, error) {
	if r.Audit == nil {
		return b, nil
	}
	e := auditEncoders.Get().(*auditEncoder)
	defer auditEncoders.Put(e)
	e.buf.Reset()
	if err := e.json.Encode(r.Audit); err != nil {
		return nil, fmt.Errorf("audit of %s: %w", r.ID, err)
	}
	audit := bytes.TrimSuffix(e.buf.Bytes(), []byte("\n"))
	if string(audit) == "{}" {
		return b, nil
	}
	return append(append(b, `,"audit":`...), audit...), nil
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

// appendChain finishes the line that begins at b[start] with seq, prev and hash, and returns b
// and the hash. The hash covers the line without its hash member and newline.
func appendChain(b []byte, start int, seq uint64, prev string) (line []byte, hash string) {
	b = strconv.AppendUint(append(b, `,"seq":`...), seq, 10)
	b = append(append(b, `,"prev":"`...), prev...)
	b = append(b, `"}`...)
	sum := sha256.Sum256(b[start:])
	b = append(append(b[:len(b)-1], hashMember...), hashPrefix...)
	b = hex.AppendEncode(b, sum[:])
	hash = string(b[len(b)-hashLen:])
	return append(b, "\"}\n"...), hash
}

// lineHash returns the hash that a finished line claims and the hash of its
// bytes. ok is false if the line does not end in a hash member.
func lineHash(line []byte) (claimed, actual string, ok bool) {
	line = bytes.TrimSuffix(line, []byte("\n"))
	at := len(line) - (lineTail - 1)
	if at <= 0 || string(line[at:at+len(hashMember)]) != hashMember || line[len(line)-1] != '}' || line[len(line)-2] != '"' {
		return "", "", false
	}
	claimed = string(line[at+len(hashMember) : len(line)-2])
	h := sha256.New()
	h.Write(line[:at])
	h.Write([]byte("}"))
	return claimed, hashPrefix + hex.EncodeToString(h.Sum(nil)), true
}

// auditEncoders reuses encoders. That saves two allocations a record.
var auditEncoders = sync.Pool{New: func() any {
	e := new(auditEncoder)
	e.json = json.NewEncoder(&e.buf)
	e.json.SetEscapeHTML(false)
	return e
}}

type auditEncoder struct {
	buf  bytes.Buffer
	json *json.Encoder // into buf
}

// ParseLine reads one line of a journal, without its newline. intact reports
// whether its hash is right. It does not check the place in the chain.
func ParseLine(line []byte) (r *Record, intact bool, err error) {
	r = new(Record)
	if err := json.Unmarshal(line, r); err != nil {
		return nil, false, fmt.Errorf("record: %w", err)
	}
	switch {
	case r.Protocol != Protocol:
		return r, false, fmt.Errorf("record: protocol %.40q is not %s", r.Protocol, Protocol)
	case r.ID == "" || r.Kind == "" || r.Seq == 0:
		return r, false, errors.New("record: id, kind or seq is missing")
	}
	claimed, actual, ok := lineHash(line)
	return r, ok && claimed == actual && claimed == r.Hash, nil
}

// intactRecord returns the record in line, nil unless its hash is right.
func intactRecord(line []byte) *Record {
	if r, intact, _ := ParseLine(line); intact {
		return r
	}
	return nil
}
