package lvm

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/devmapper"
)

const cryptTarget = "crypt"

// loadCrypt loads a new device's table. It draws the key in the memory that the kernel reads,
// and nowhere else.
func loadCrypt(name string, sectors int64, below devmapper.Device, o CryptOptions) (devmapper.Device, error) {
	s, err := newSecret()
	if err != nil {
		return devmapper.Device{}, err
	}
	defer s.wipe()
	params := s.memory[devmapper.ParamsOffset:]
	n := copy(params, cipher+" ")
	key := params[n : n+2*keySize]
	if err := drawKey(key); err != nil {
		return devmapper.Device{}, err
	}
	n += 2 * keySize
	options := ""
	if o.Discards {
		options = " 1 allow_discards"
	}
	n += copy(params[n:], fmt.Sprintf(" 0 %d:%d 0%s\x00", below.Major, below.Minor, options))
	d, err := devmapper.LoadSecret(name, cryptTarget, sectors, s.memory, n)
	return d, fromKernel(err)
}

func drawKey(key []byte) error {
	raw := key[len(key)/2:]
	for got := 0; got < len(raw); {
		more, err := unix.Getrandom(raw[got:], 0)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("drawing a key: %w", err)
		}
		got += max(0, more)
	}
	spell(key)
	return nil
}

// spell writes key's second half in hexadecimal digits over all of key. From the front, it
// overwrites only bytes that it has read.
func spell(key []byte) {
	const digits = "0123456789abcdef"
	raw := key[len(key)/2:]
	for i := range raw {
		b := raw[i]
		key[2*i], key[2*i+1] = digits[b>>4], digits[b&15]
	}
}

func extendCrypt(name string, sectors int64) error {
	s, err := newSecret()
	if err != nil {
		return err
	}
	defer s.wipe()
	n, err := devmapper.ReadSecret(name, cryptTarget, s.memory)
	if err == nil {
		_, err = devmapper.LoadSecret(name, cryptTarget, sectors, s.memory, n)
	}
	return fromKernel(err)
}

// secret is memory for one ioctl that carries a key: locked, excluded from core dumps and child
// processes, and zeroed at the end. The key is nowhere else in this process, least of all in
// memory that Go moves or keeps.
type secret struct{ memory []byte }

func newSecret() (*secret, error) {
	b, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("memory for a key: %w", err)
	}
	s := &secret{b}
	err = errors.Join(unix.Mlock(b), unix.Madvise(b, unix.MADV_DONTDUMP), unix.Madvise(b, unix.MADV_DONTFORK))
	if err != nil {
		s.wipe()
		return nil, fmt.Errorf("memory for a key cannot be locked: %w", err)
	}
	return s, nil
}

func (s *secret) wipe() {
	clear(s.memory)
	runtime.KeepAlive(s.memory)
	_ = unix.Munmap(s.memory)
}
