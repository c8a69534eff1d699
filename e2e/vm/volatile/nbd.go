package volatile

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// The NBD protocol, as far as QEMU needs it (the "fixed newstyle" handshake and
// simple replies): https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md
const (
	magicServer  = 0x4e42444d41474943 // "NBDMAGIC"
	magicOption  = 0x49484156454f5054 // "IHAVEOPT"
	magicAnswer  = 0x0003e889045565a9
	magicRequest = 0x25609513
	magicReply   = 0x67446698

	handshakeFlags = 1 | 2 // fixed newstyle, no zeroes

	optionExportName = 1
	optionAbort      = 2
	optionInfo       = 6
	optionGo         = 7

	answerAck         = 1
	answerInfo        = 3
	answerUnsupported = 1<<31 + 1

	infoExport = 0

	// exportFlags: flags are given; flush, trim and write-zeroes are known.
	exportFlags = 1 | 1<<2 | 1<<5 | 1<<6

	commandRead        = 0
	commandWrite       = 1
	commandDisconnect  = 2
	commandFlush       = 3
	commandTrim        = 4
	commandWriteZeroes = 6

	errorInvalid = 22
	errorIO      = 5

	// maxLength bounds a request of either side.
	maxLength   = 64 << 20
	zeroesChunk = 1 << 20
)

// serve speaks to one client until it disconnects.
func serve(connection net.Conn, s *store) error {
	r, w := bufio.NewReaderSize(connection, 1<<20), bufio.NewWriterSize(connection, 1<<20)
	if err := handshake(r, w, s.size); err != nil {
		return err
	}
	for {
		var q struct {
			Magic       uint32
			Flags, Type uint16
			Handle      uint64
			Offset      uint64
			Length      uint32
		}
		if err := binary.Read(r, binary.BigEndian, &q); err != nil {
			return err
		}
		if q.Magic != magicRequest {
			return fmt.Errorf("a request begins with %#x", q.Magic)
		}
		if q.Type == commandDisconnect {
			return nil
		}
		data, err := transmit(r, s, q.Type, int64(q.Offset), int64(q.Length))
		var code uint32
		switch {
		case errors.Is(err, errRequest):
			code = errorInvalid
		case errors.Is(err, errStore):
			code = errorIO
		case err != nil:
			return err
		}
		err = binary.Write(w, binary.BigEndian, struct {
			Magic, Error uint32
			Handle       uint64
		}{magicReply, code, q.Handle})
		if err == nil && code == 0 {
			_, err = w.Write(data)
		}
		// A client that sent several requests reads the replies of all in one go.
		if err == nil && r.Buffered() == 0 {
			err = w.Flush()
		}
		if err != nil {
			return err
		}
	}
}

var (
	errRequest = errors.New("the request makes no sense")
	errStore   = errors.New("the disk's file fails")
)

// transmit carries out one request and returns what is read by it.
func transmit(r io.Reader, s *store, command uint16, off, length int64) ([]byte, error) {
	if command == commandWrite || command == commandRead {
		if length > maxLength {
			return nil, fmt.Errorf("a request of %d bytes", length)
		}
		data := make([]byte, length)
		if command == commandRead {
			return data, storeError(s.read(data, off))
		}
		if _, err := io.ReadFull(r, data); err != nil {
			return nil, err
		}
		return nil, storeError(s.write(data, off))
	}
	switch command {
	case commandFlush:
		s.flush()
	case commandTrim:
		// A client may not rely on what a trimmed range holds: leave it.
	case commandWriteZeroes:
		zeroes := make([]byte, min(zeroesChunk, length))
		for ; length > 0; length, off = length-int64(len(zeroes)), off+int64(len(zeroes)) {
			if err := s.write(zeroes[:min(int64(len(zeroes)), length)], off); err != nil {
				return nil, storeError(err)
			}
		}
	default:
		return nil, fmt.Errorf("%w: command %d", errRequest, command)
	}
	return nil, nil
}

func storeError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", errStore, err)
}

// handshake agrees with a client on the one export that there is.
func handshake(r io.Reader, w *bufio.Writer, size int64) error {
	err := binary.Write(w, binary.BigEndian, struct {
		Magic, Option uint64
		Flags         uint16
	}{magicServer, magicOption, handshakeFlags})
	if err = errors.Join(err, w.Flush()); err != nil {
		return err
	}
	var clientFlags uint32
	if err := binary.Read(r, binary.BigEndian, &clientFlags); err != nil {
		return err
	}
	for {
		var o struct {
			Magic          uint64
			Option, Length uint32
		}
		if err := binary.Read(r, binary.BigEndian, &o); err != nil {
			return err
		}
		if o.Magic != magicOption || o.Length > 1<<16 {
			return fmt.Errorf("an option begins with %#x and has %d bytes", o.Magic, o.Length)
		}
		if _, err := io.CopyN(io.Discard, r, int64(o.Length)); err != nil {
			return err
		}
		switch o.Option {
		case optionExportName:
			err := binary.Write(w, binary.BigEndian, struct {
				Size  uint64
				Flags uint16
			}{uint64(size), exportFlags})
			return errors.Join(err, w.Flush())
		case optionInfo, optionGo:
			export := binary.BigEndian.AppendUint16(nil, infoExport)
			export = binary.BigEndian.AppendUint64(export, uint64(size))
			export = binary.BigEndian.AppendUint16(export, exportFlags)
			err = errors.Join(answer(w, o.Option, answerInfo, export), answer(w, o.Option, answerAck, nil))
			if o.Option == optionGo {
				return err
			}
		case optionAbort:
			return errors.Join(answer(w, o.Option, answerAck, nil), io.EOF)
		default:
			err = answer(w, o.Option, answerUnsupported, nil)
		}
		if err != nil {
			return err
		}
	}
}

func answer(w *bufio.Writer, option, kind uint32, data []byte) error {
	err := binary.Write(w, binary.BigEndian, struct {
		Magic                uint64
		Option, Kind, Length uint32
	}{magicAnswer, option, kind, uint32(len(data))})
	_, writeErr := w.Write(data)
	return errors.Join(err, writeErr, w.Flush())
}

func isHangUp(err error) bool {
	return errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, net.ErrClosed)
}
