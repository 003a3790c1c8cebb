package scrub

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"io"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	// maxUnpacked is the number of bytes that the runs of one message are unpacked to, in sum.
	maxUnpacked = 4 << 20
	// unpackWork is what beginning with one run counts for, in such bytes.
	unpackWork = 512
)

// packings are the ways in which a whole text is packed into bytes, by what those begin with. open
// returns nil if the bytes go on differently.
var packings = []struct {
	magic string
	open  func(x *examination, packed []byte) io.Reader
}{
	{"\x1f\x8b\x08", (*examination).gunzip},
	{"\x78\x01", (*examination).inflate}, {"\x78\x5e", (*examination).inflate},
	{"\x78\x9c", (*examination).inflate}, {"\x78\xda", (*examination).inflate},
	{littleMark, fromUTF16}, {bigMark, fromUTF16},
}

// beginsPacking has the first byte of each magic.
var beginsPacking = func() (first [256]bool) {
	for i := range packings {
		first[packings[i].magic[0]] = true
	}
	return first
}()

// The marks at the beginning of UTF-16.
const littleMark, bigMark = "\xff\xfe", "\xfe\xff"

// addUnpacked adds the edit for the text that is packed in a run of base64 or hexadecimal, up to the bounds.
func (x *examination) addUnpacked(l *edits, text string, run span) error {
	for _, bits := range []int{6, 4} {
		first, ok := firstBytes(text[run.Start:run.End], bits)
		if !ok {
			continue
		}
		mark, open := packingOf(first[:])
		if open == nil || x.unpacked >= maxUnpacked {
			continue
		}
		x.unpacked += unpackWork
		r := open(x, appendBytes([]byte(mark), text, run, bits, run.End-run.Start))
		if r == nil {
			continue
		}
		out, err := x.readAll(r)
		if err != nil {
			return err
		}
		if len(out) >= minDecoded {
			l.add(span{run.Start, paddingEnd(text, run.End)}, ";\n"+string(out)+"\n") // a name before it is not that of its first line
		}
	}
	return nil
}

// firstBytes returns the first four bytes that digits, each of so many bits, encode. ok is false if one is no digit.
func firstBytes(digits string, bits int) (first [4]byte, ok bool) {
	value, valueOf := uint64(0), &base64Digit
	if bits == 4 {
		valueOf = &hexDigit
	}
	n := (32 + bits - 1) / bits
	for _, c := range []byte(digits[:min(n, len(digits))]) {
		if valueOf[c] == noDigit {
			return first, false
		}
		value = value<<bits | uint64(valueOf[c])
	}
	binary.BigEndian.PutUint32(first[:], uint32(value>>(n*bits-32)))
	return first, true
}

// packingOf returns how bytes that begin so are unpacked, or nil if they are not packed, and the
// mark that they lack if they are UTF-16.
func packingOf(begin []byte) (mark string, open func(*examination, []byte) io.Reader) {
	switch {
	case len(begin) < 4:
	case begin[1]|begin[3] == 0 && texty[begin[0]] && texty[begin[2]]:
		mark = littleMark
	case begin[0]|begin[2] == 0 && texty[begin[1]] && texty[begin[3]]:
		mark = bigMark
	}
	if mark != "" {
		begin = []byte(mark) // of the text with it
	}
	if len(begin) == 0 || !beginsPacking[begin[0]] {
		return mark, nil
	}
	for i := range packings {
		if bytes.HasPrefix(begin, []byte(packings[i].magic)) {
			return mark, packings[i].open
		}
	}
	return mark, nil
}

// readAll reads what r gives until it fails or maxUnpacked is reached.
func (x *examination) readAll(r io.Reader) ([]byte, error) {
	var out bytes.Buffer
	for x.unpacked < maxUnpacked {
		n, err := io.CopyN(&out, r, int64(min(maxUnpacked-x.unpacked, 32<<10)))
		x.unpacked += int(n)
		if err := x.limit.Spend(10 * int(n)); err != nil {
			return nil, err
		}
		if err != nil {
			break // also of data that is cut: what came before counts
		}
	}
	return out.Bytes(), nil
}

// appendBytes appends up to most bytes that the digits of a run encode, each of so many bits. Those
// of hexadecimal end the run at any other.
func appendBytes(dst []byte, text string, run span, bits, most int) []byte {
	digits := &base64Digit
	if bits == 4 {
		digits = &hexDigit
	}
	value, have := uint(0), 0
	for i := run.Start; i < run.End && len(dst) < most; i++ {
		d := digits[text[i]]
		if d == noDigit && inBase64(text[i]) {
			break
		} else if d == noDigit {
			continue // a line break
		}
		value, have = value<<bits|uint(d), have+bits
		if have >= 8 {
			have -= 8
			dst = append(dst, byte(value>>have))
		}
	}
	return dst
}

func (x *examination) gunzip(packed []byte) io.Reader {
	if x.gzip.Reset(bytes.NewReader(packed)) != nil {
		return nil
	}
	return &x.gzip
}

func (x *examination) inflate(packed []byte) io.Reader {
	const header = 2 // of zlib
	if x.flate == nil {
		x.flate = flate.NewReader(nil)
	}
	if x.flate.(flate.Resetter).Reset(bytes.NewReader(packed[header:]), nil) != nil {
		return nil
	}
	return x.flate
}

func fromUTF16(_ *examination, packed []byte) io.Reader {
	order := binary.ByteOrder(binary.LittleEndian)
	if string(packed[:2]) == bigMark {
		order = binary.BigEndian
	}
	units := make([]uint16, len(packed)/2)
	for i := range units {
		units[i] = order.Uint16(packed[2*i:])
	}
	out := make([]byte, 0, len(packed))
	for _, r := range utf16.Decode(units[1:]) {
		out = utf8.AppendRune(out, r)
	}
	return bytes.NewReader(out)
}
