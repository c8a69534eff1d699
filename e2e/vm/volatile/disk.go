package volatile

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
)

// Disk is a disk that is being served. Its methods may be called concurrently.
type Disk struct {
	store    *store
	listener *net.UnixListener
	random   *rand.Rand
	done     chan struct{}

	mu sync.Mutex
	// connection is the machine's, nil while there is none; idle is closed when
	// nothing of it is being carried out any more.
	connection net.Conn
	idle       chan struct{}
	err        error
}

// Serve serves the file at path, made of the given size in bytes where there is
// none, on a unix socket at path + ".sock", to one machine at a time, until Close.
// The seed decides what power cuts lose.
func Serve(path string, size int64, loss Loss, seed uint64) (*Disk, error) {
	if size <= 0 || size%sectorSize != 0 {
		return nil, fmt.Errorf("a disk of %d bytes: it must be a positive multiple of %d", size, sectorSize)
	}
	store, err := openStore(path, size, loss)
	if err != nil {
		return nil, err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path + ".sock", Net: "unix"})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("serve a disk: %w", err), store.file.Close())
	}
	d := &Disk{store: store, listener: listener, random: rand.New(rand.NewPCG(seed, seed)), done: make(chan struct{})}
	go d.accept()
	return d, nil
}

// Socket is the path of the socket that QEMU connects to.
func (d *Disk) Socket() string { return d.listener.Addr().String() }

// Flushes counts the flushes that the machine has asked for.
func (d *Disk) Flushes() int {
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	return d.store.flushes
}

// Flush makes everything durable, as pulling no plug for long enough does.
func (d *Disk) Flush() { d.store.flush() }

// Cut loses what was not flushed. The machine must be off: Cut waits until nothing
// of it is under way. It returns how many sectors were lost, and of how many that
// were not flushed.
func (d *Disk) Cut() (lost, unflushed int, err error) {
	d.mu.Lock()
	idle, err := d.idle, d.err
	d.mu.Unlock()
	if err != nil {
		return 0, 0, err
	}
	if idle != nil {
		<-idle
	}
	return d.store.cut(d.random)
}

// Close ends the service. The file stays.
func (d *Disk) Close() error {
	err := d.listener.Close()
	d.mu.Lock()
	if d.connection != nil {
		_ = d.connection.Close()
	}
	d.mu.Unlock()
	<-d.done
	return errors.Join(err, d.store.file.Close(), d.err)
}

func (d *Disk) accept() {
	defer close(d.done)
	for {
		connection, err := d.listener.Accept()
		if err != nil {
			return // closed
		}
		idle := make(chan struct{})
		d.mu.Lock()
		d.connection, d.idle = connection, idle
		d.mu.Unlock()
		err = serve(connection, d.store)
		_ = connection.Close()
		d.mu.Lock()
		// That a machine goes away in the middle is what it is for.
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !isHangUp(err) {
			d.err = errors.Join(d.err, fmt.Errorf("serve a disk: %w", err))
		}
		d.connection = nil
		d.mu.Unlock()
		close(idle)
	}
}
