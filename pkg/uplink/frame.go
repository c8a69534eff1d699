package uplink

import (
	"encoding/binary"
	"fmt"
	"io"

	"google.golang.org/protobuf/proto"
)

// FrameTooLargeError means that a frame, announced by the peer or about to be sent, exceeds
// MaxFrameBytes.
type FrameTooLargeError struct {
	Bytes int64
}

func (e *FrameTooLargeError) Error() string {
	return fmt.Sprintf("uplink frame of %d bytes, at most %d are allowed", e.Bytes, MaxFrameBytes)
}

// writeFrame uses a single Write.
func writeFrame(w io.Writer, m proto.Message) error {
	body, err := proto.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode uplink frame: %w", err)
	}
	if len(body) > MaxFrameBytes {
		return &FrameTooLargeError{Bytes: int64(len(body))}
	}
	frame := make([]byte, 4, 4+len(body))
	binary.BigEndian.PutUint32(frame, uint32(len(body)))
	if _, err := w.Write(append(frame, body...)); err != nil {
		return fmt.Errorf("write uplink frame: %w", err)
	}
	return nil
}

// readFrame reads exactly one frame: the bytes after the handshake belong to gRPC. It allocates
// nothing for a frame that is too large.
func readFrame(r io.Reader, m proto.Message) error {
	var header [4]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return fmt.Errorf("read uplink frame: %w", err)
	}
	size := binary.BigEndian.Uint32(header[:])
	if size > MaxFrameBytes {
		return &FrameTooLargeError{Bytes: int64(size)}
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(r, body); err != nil {
		return fmt.Errorf("read uplink frame: %w", err)
	}
	if err := proto.Unmarshal(body, m); err != nil {
		return fmt.Errorf("decode uplink frame: %w", err)
	}
	return nil
}
