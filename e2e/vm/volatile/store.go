package volatile

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
)

const sectorSize = 512

// Loss is what a power cut may take of what was not flushed.
type Loss int

const (
	// Latest takes the latest writes: the disk writes in the order in which they
	// come. Of the first write that is lost, some leading sectors may stay.
	Latest Loss = iota
	// Any takes any of the sectors that were written, whatever came before.
	Any
)

// store is a file that remembers what unflushed writes replaced.
type store struct {
	mu   sync.Mutex
	file *os.File
	size int64
	loss Loss
	// writes are those since the last flush, in their order.
	writes []write
	// flushes counts the flushes.
	flushes int
}

// write remembers what a write replaced.
type write struct {
	off int64
	old []byte
}

func openStore(path string, size int64, loss Loss) (*store, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open a disk: %w", err)
	}
	if err := file.Truncate(size); err != nil {
		return nil, errors.Join(fmt.Errorf("size a disk: %w", err), file.Close())
	}
	return &store{file: file, size: size, loss: loss}, nil
}

// check reports whether a range lies in the disk and is made of whole sectors.
func (s *store) check(off, length int64) error {
	if off < 0 || length < 0 || off%sectorSize != 0 || length%sectorSize != 0 || off > s.size-length {
		return fmt.Errorf("%d bytes at %d of %d", length, off, s.size)
	}
	return nil
}

func (s *store) read(p []byte, off int64) error {
	if err := s.check(off, int64(len(p))); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.file.ReadAt(p, off)
	return err
}

func (s *store) write(p []byte, off int64) error {
	if err := s.check(off, int64(len(p))); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := make([]byte, len(p))
	if _, err := s.file.ReadAt(old, off); err != nil {
		return err
	}
	s.writes = append(s.writes, write{off, old})
	_, err := s.file.WriteAt(p, off)
	return err
}

// flush makes all that was written durable.
func (s *store) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes = nil
	s.flushes++
}

// cut loses unflushed writes: all in half of the cases, otherwise as the disk's kind
// of loss and chance have it. It returns how many sectors were lost, and of how many.
func (s *store) cut(random *rand.Rand) (lost, unflushed int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.writes {
		unflushed += len(w.old) / sectorSize
	}
	kept := 0
	if unflushed > 0 && random.IntN(2) == 0 {
		kept = random.IntN(unflushed + 1)
	}
	all := kept == 0
	for at, i := unflushed, len(s.writes)-1; i >= 0; i-- {
		w := s.writes[i]
		for off := len(w.old) - sectorSize; off >= 0; off -= sectorSize {
			at--
			if s.loss == Latest && at < kept || s.loss == Any && !all && random.IntN(2) == 0 {
				continue
			}
			lost++
			if _, err := s.file.WriteAt(w.old[off:off+sectorSize], w.off+int64(off)); err != nil {
				return lost, unflushed, fmt.Errorf("lose a sector: %w", err)
			}
		}
	}
	s.writes = nil
	return lost, unflushed, nil
}
