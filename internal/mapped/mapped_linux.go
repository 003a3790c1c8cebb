package mapped

import (
	"os"
	"syscall"
)

func open(f *os.File, size int) Memory {
	memory, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil
	}
	return memory
}

// Close ends the use of the memory.
func (m Memory) Close() { _ = syscall.Munmap(m) }
