package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// parseRecord reads one line of a journal. It checks the form, not the chain.
func parseRecord(line []byte) (*Record, error) {
	r := new(Record)
	if err := json.Unmarshal(line, r); err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	return r, r.wellFormed()
}

func (r *Record) wellFormed() error {
	switch {
	case r.Protocol != Protocol:
		return fmt.Errorf("record: protocol %.40q is not %s", r.Protocol, Protocol)
	case r.ID == "" || r.Kind == "" || r.Seq == 0:
		return errors.New("record: id, kind or seq is missing")
	}
	return nil
}

// readRecord reads a line that may be trusted to be JSON if its hash is right,
// because then this package wrote it; such a line is read twice as fast. ok
// reports whether the hash is right.
func readRecord(line []byte) (r *Record, ok bool, err error) {
	claimed, actual, has := lineHash(line)
	if has && claimed == actual {
		r = new(Record)
		if err = r.parseOwn(line); err == nil {
			err = r.wellFormed()
		}
		if err == nil && r.Hash == claimed {
			return r, true, nil
		}
	}
	r, err = parseRecord(line)
	return r, false, err
}

// parseOwn reads a line that is valid JSON.
func (r *Record) parseOwn(line []byte) (err error) {
	whole := rawjson.Members(line, func(m rawjson.Member) bool {
		switch string(m.Key) {
		case `"protocol"`:
			r.Protocol = string(text(m.Value))
		case `"id"`:
			r.ID = string(text(m.Value))
		case `"ts"`:
			r.TS = string(text(m.Value))
		case `"from"`:
			r.From = string(text(m.Value))
		case `"to"`:
			rawjson.Elements(m.Value, func(e []byte) bool {
				r.To = append(r.To, string(text(e)))
				return true
			})
		case `"kind"`:
			r.Kind = string(text(m.Value))
		case `"correlationId"`:
			r.CorrelationID, _, err = DecodeIDs(m.Value, Transition)
		case `"context"`:
			r.Context = string(text(m.Value))
		case `"payload"`:
			r.Payload = append(json.RawMessage(nil), m.Value...)
		case `"audit"`:
			r.Audit = new(Audit)
			err = json.Unmarshal(m.Value, r.Audit)
		case `"seq"`:
			r.Seq, err = strconv.ParseUint(string(m.Value), 10, 64)
		case `"prev"`:
			r.Prev = string(text(m.Value))
		case `"hash"`:
			r.Hash = string(text(m.Value))
		}
		return err == nil
	})
	if err == nil && !whole {
		err = errors.New("record: not an object")
	}
	return err
}
