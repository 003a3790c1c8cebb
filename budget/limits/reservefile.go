package limits

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/foldgate/foldgate/internal/mapped"
)

// ReserveFile is a file with what a process has reserved, for the process that comes after it. What is
// taken from a reserve is taken in the file first. A write to it survives the death of the process.
// It need not survive the machine: after that, what the file says to be left counts as used.
//
// One process at a time may have the file open: its directory must belong to the process. A reserve file
// is safe for concurrent use.
type ReserveFile struct {
	file *os.File

	mu     sync.Mutex     // guards the fields below
	memory mapped.Memory  // the file
	page   [slotSize]byte // that is written
	used   int            // slots that the file has
	free   []int          // those that no account has
	left   []*account     // what a process before left
}

// The file begins with a head in a slot of its own. A slot is a page: a process that is killed has
// done a write to it or not. [ReserveFile.writeNumbers] is the exception.
const (
	slotSize   = 4096
	slotIDs    = 64  // where the ids begin, after the numbers
	slotID     = 64  // bytes for an id
	slotCounts = 192 // where the description of the counters begins, in JSON
	maxSlots   = 4096
	fileHead   = "foldgate reserves 1\n"
)

// OpenReserveFile opens or creates a reserve file for what is reserved at a store, which is named by at most 64
// characters. What is left in it goes back to the store with the first [New] that gets it. Of another
// store nothing goes back.
func OpenReserveFile(path, store string) (*ReserveFile, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	d := &ReserveFile{file: f}
	if err := d.read(store); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	d.memory = mapped.Open(f, slotSize*(maxSlots+1))
	return d, nil
}

// ReserveFileIsOf reports whether the reserve file at path was last opened for a store. It changes nothing.
func ReserveFileIsOf(path, store string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, slotSize)
	n, _ := io.ReadFull(f, head) // what is cut off is of no store
	return bytes.HasSuffix(bytes.TrimRight(head[:n], "\x00"), []byte("\n"+store))
}

func (d *ReserveFile) read(store string) error {
	raw, err := io.ReadAll(io.LimitReader(d.file, slotSize*(maxSlots+1)))
	if err != nil {
		return err
	}
	life := life(d.file)
	head := append([]byte(fileHead+life+store), make([]byte, slotSize)...)[:slotSize]
	trusted := life != "" && bytes.HasPrefix(raw, head)
	for at := slotSize; at < len(raw); at += slotSize {
		d.used++
		a := readSlot(append(raw[at:len(raw):len(raw)], make([]byte, slotSize)...)[:slotSize])
		a.slot, a.name = d.used, fmt.Sprintf("\x00left %d", d.used)
		if !trusted {
			a.tokens, a.calls, a.pendingTake = min(a.tokens, 0), min(a.calls, 0), ""
			a.returnTokens, a.returnCalls = min(a.returnTokens, 0), min(a.returnCalls, 0)
			if err := d.write(a); err != nil {
				return err
			}
		}
		if len(a.counters) == 0 || a.idle() {
			d.free = append(d.free, d.used)
		} else {
			d.left = append(d.left, a)
		}
	}
	if !trusted {
		_, err = d.file.WriteAt(head, 0) // last: from now on the file is trusted
	}
	return err
}

// takeLeft returns what a process before has left, once.
func (d *ReserveFile) takeLeft() []*account {
	d.mu.Lock()
	defer d.mu.Unlock()
	left := d.left
	d.left = nil
	return left
}

// readSlot returns the account in a slot, without counters if there is none.
func readSlot(page []byte) *account {
	a := &account{described: true}
	for i, n := range a.numbers() {
		*n = int64(binary.LittleEndian.Uint64(page[8*i:]))
	}
	for i, id := range a.ids() {
		*id = string(bytes.TrimRight(page[slotIDs+slotID*i:][:slotID], "\x00"))
	}
	var changes []Change
	if json.Unmarshal(bytes.TrimRight(page[slotCounts:], "\x00"), &changes) == nil {
		for _, c := range changes {
			a.counters = append(a.counters, Counter{Key: c.Key, Bucket: c.Bucket, Expires: c.Expires})
		}
	}
	return a
}

// numbers and ids are what a slot has of an account.
func (a *account) numbers() [5]*int64 {
	return [...]*int64{&a.tokens, &a.calls, &a.returnTokens, &a.returnCalls, &a.returnSince}
}

func (a *account) ids() [2]*string { return [...]*string{&a.pendingTake, &a.pendingReturn} }

// write writes an account to its slot.
func (d *ReserveFile) write(a *account) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	page := d.page[:slotCounts]
	if !a.described {
		page = d.page[:]
	}
	clear(page)
	for i, n := range a.numbers() {
		binary.LittleEndian.PutUint64(page[8*i:], uint64(*n))
	}
	for i, id := range a.ids() {
		copy(page[slotIDs+slotID*i:][:slotID], *id)
	}
	switch {
	case !a.described:
		copy(page[slotCounts:], a.description())
	case d.writeNumbers(page, a.slot):
		return nil
	}
	_, err := d.file.WriteAt(page, int64(a.slot)*slotSize)
	a.described = a.described || err == nil
	return err
}

// writeNumbers writes to the memory of a slot, if only what is reserved has changed: most calls need
// no operation of the kernel. A process that is killed between the two numbers has not yet delivered
// what they pay.
func (d *ReserveFile) writeNumbers(page []byte, slot int) (done bool) {
	const reserve = 16 // bytes of the tokens and the calls
	return d.memory.Do(int64(slot)*slotSize, int64(len(page)), func(is []byte) bool {
		if !bytes.Equal(is[reserve:], page[reserve:]) {
			return false
		}
		for at := 0; at < reserve; at += 8 {
			atomic.StoreUint64((*uint64)(unsafe.Pointer(&is[at])), binary.NativeEndian.Uint64(page[at:]))
		}
		return true
	})
}

func (a *account) description() []byte {
	text, _ := json.Marshal(a.undoChanges()) // of strings and numbers
	return text
}

// assignSlot gives an account a slot, if one is free and large enough.
func (d *ReserveFile) assignSlot(a *account) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch n := len(d.free); {
	case len(a.description()) > slotSize-slotCounts:
		return
	case n > 0:
		a.slot, d.free = d.free[n-1], d.free[:n-1]
	case d.used < maxSlots:
		d.used++
		a.slot = d.used
	}
	a.described = false
}

// releaseSlot takes back the slot of an account that has nothing to keep any more.
func (d *ReserveFile) releaseSlot(a *account) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.free = append(d.free, a.slot)
	a.slot = 0
}

// Close closes the file. What is reserved from then on is lost with the process.
func (d *ReserveFile) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.memory.Close()
	d.memory = nil
	return d.file.Close()
}
