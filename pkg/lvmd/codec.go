package lvmd

import (
	"sync"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that those here add to
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/timestamppb"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

// protoCodec is gRPC's own codec. What goes over the wire is the same with those
// below, whose name is its name, too.
func protoCodec() encoding.CodecV2 { return encoding.GetCodecV2("proto") }

// answerReader reads lvmd's answers with code that was generated for each of them,
// and without copying their strings: a list of 1,000 volumes has ten thousand. It
// does not look whether they are UTF-8, which lvmd did. The strings of an answer lie
// in the bytes that it came in, so who keeps one string keeps all of the answer.
type answerReader struct{ encoding.CodecV2 }

// quicklyRead is a message that there is such code for.
type quicklyRead interface {
	UnmarshalVTUnsafe(encoded []byte) error
}

// Unmarshal implements encoding.CodecV2.
func (c answerReader) Unmarshal(encoded mem.BufferSlice, message any) error {
	m, ok := message.(quicklyRead)
	if !ok {
		return c.CodecV2.Unmarshal(encoded, message)
	}
	// A copy, which is the message's from now on: the buffers go back to gRPC.
	own := encoded.Materialize()
	if list, ok := message.(*lvmdv1.ListVolumesResponse); ok {
		return readList(own, list)
	}
	return m.UnmarshalVTUnsafe(own)
}

// slot is where a list's volume is read into, with what lvmd says of every volume:
// whose it is and when it was made.
type slot struct {
	volume  lvmdv1.Volume
	owner   lvmdv1.Owner
	created timestamppb.Timestamp
}

// slots is how many are made at once. To find memory for each part of each volume
// takes as long as to read them; what is larger than 32 KiB, Go makes slower again.
const slots = 32

// readList reads a list of volumes.
func readList(encoded []byte, list *lvmdv1.ListVolumesResponse) error {
	var free []slot
	for len(encoded) > 0 {
		number, kind, tag := protowire.ConsumeTag(encoded)
		if number != volumesField || kind != protowire.BytesType {
			return list.UnmarshalVTUnsafe(encoded) // The volumes come first.
		}
		volume, length := protowire.ConsumeBytes(encoded[tag:])
		if length < 0 {
			return protowire.ParseError(length)
		}
		if list.Volumes == nil {
			// The others are as long, but for a few bytes.
			list.Volumes = make([]*lvmdv1.Volume, 0, len(encoded)/(tag+length)+1)
		}
		if len(free) == 0 {
			free = make([]slot, min(slots, cap(list.Volumes)))
		}
		r := &free[0]
		free = free[1:]
		r.volume.Owner, r.volume.CreatedAt = &r.owner, &r.created
		if err := r.volume.UnmarshalVTUnsafe(volume); err != nil {
			return err
		}
		list.Volumes = append(list.Volumes, &r.volume)
		encoded = encoded[tag+length:]
	}
	return nil
}

// answerWriter sends lists of volumes as they were encoded, see listed, without
// another copy.
type answerWriter struct {
	encoding.CodecV2
	// sent is where the bytes of a list go when they were sent.
	sent *listBuffers
}

// Marshal implements encoding.CodecV2.
func (c answerWriter) Marshal(message any) (mem.BufferSlice, error) {
	r, ok := message.(*lvmdv1.ListVolumesResponse)
	if !ok || len(r.GetVolumes()) > 0 || r.GetNextPageToken() != "" {
		return c.CodecV2.Marshal(message)
	}
	encoded := []byte(r.ProtoReflect().GetUnknown())
	return mem.BufferSlice{mem.NewBuffer(&encoded, c.sent)}, nil
}

// listBuffers are the bytes of lists that were sent, for the next lists: a long one
// would have the garbage collector go through everything every few times. It
// implements mem.BufferPool; safe for concurrent use.
type listBuffers struct{ free sync.Pool }

// Get returns bytes that hold anything.
func (b *listBuffers) Get(length int) *[]byte {
	if buffer, ok := b.free.Get().(*[]byte); ok && cap(*buffer) >= length {
		*buffer = (*buffer)[:length]
		return buffer
	}
	buffer := make([]byte, length)
	return &buffer
}

// Put takes back what nobody uses any more.
func (b *listBuffers) Put(buffer *[]byte) { b.free.Put(buffer) }
