package lvmd

import (
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

// readList reads a list into one piece of memory for all of its volumes: to find one
// for each of their parts takes as long as to read them.
func readList(encoded []byte, list *lvmdv1.ListVolumesResponse) error {
	count := 0
	for rest := encoded; len(rest) > 0; {
		number, _, length := protowire.ConsumeField(rest)
		if length < 0 {
			return protowire.ParseError(length)
		}
		if number == volumesField {
			count++
		}
		rest = rest[length:]
	}
	read := make([]struct {
		volume lvmdv1.Volume
		// lvmd says of every volume whose it is and when it was made.
		owner   lvmdv1.Owner
		created timestamppb.Timestamp
	}, count)
	list.Volumes = make([]*lvmdv1.Volume, 0, count)
	for rest := encoded; len(rest) > 0; {
		number, _, length := protowire.ConsumeField(rest)
		field := rest[:length]
		rest = rest[length:]
		if number != volumesField {
			if err := list.UnmarshalVTUnsafe(field); err != nil {
				return err
			}
			continue
		}
		_, _, tag := protowire.ConsumeTag(field)
		volume, length := protowire.ConsumeBytes(field[tag:])
		if length < 0 {
			return protowire.ParseError(length)
		}
		r := &read[len(list.Volumes)]
		r.volume.Owner, r.volume.CreatedAt = &r.owner, &r.created
		if err := r.volume.UnmarshalVTUnsafe(volume); err != nil {
			return err
		}
		list.Volumes = append(list.Volumes, &r.volume)
	}
	return nil
}

// answerWriter sends lists of volumes as they were encoded, see listed, without
// another copy.
type answerWriter struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c answerWriter) Marshal(message any) (mem.BufferSlice, error) {
	if r, ok := message.(*lvmdv1.ListVolumesResponse); ok && len(r.GetVolumes()) == 0 && r.GetNextPageToken() == "" {
		return mem.BufferSlice{mem.SliceBuffer(r.ProtoReflect().GetUnknown())}, nil
	}
	return c.CodecV2.Marshal(message)
}
