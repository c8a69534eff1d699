//go:build !kernel

package lvmd

import (
	"math"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/must"
)

// anyVolume draws a volume of which anything may be said, or not, but for what is
// said of every volume.
func anyVolume(t *rapid.T) *lvmdv1.Volume {
	text := rapid.StringN(0, 40, -1)
	conditions := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) *lvmdv1.Condition {
		return &lvmdv1.Condition{Type: text.Draw(t, "type"), Message: text.Draw(t, "message")}
	}), 0, 2)
	v := &lvmdv1.Volume{
		Id: text.Draw(t, "id"), Name: text.Draw(t, "name"), DeviceClass: text.Draw(t, "class"),
		SizeBytes: rapid.Int64().Draw(t, "size"), Mode: lvmdv1.VolumeMode(rapid.Int32Range(0, 9).Draw(t, "mode")),
		FsType: text.Draw(t, "fs"), State: lvmdv1.VolumeState(rapid.Int32Range(0, 9).Draw(t, "state")),
		DevicePath: text.Draw(t, "path"), DeviceMajor: rapid.Uint32().Draw(t, "major"), DeviceMinor: rapid.Uint32().Draw(t, "minor"),
		VgName: text.Draw(t, "group"), VgUuid: text.Draw(t, "uuid"),
		Owner: &lvmdv1.Owner{
			ClusterId: text.Draw(t, "cluster"), ClaimNamespace: text.Draw(t, "namespace"), ClaimName: text.Draw(t, "claim"),
			ClaimUid: text.Draw(t, "claim's uid"), PodNamespace: text.Draw(t, "pod's namespace"), PodName: text.Draw(t, "pod"),
			PodUid: text.Draw(t, "pod's uid"),
		},
		CreatedAt:  &timestamppb.Timestamp{Seconds: rapid.Int64().Draw(t, "created"), Nanos: rapid.Int32().Draw(t, "and a bit")},
		Conditions: conditions.Draw(t, "conditions"), Found: conditions.Draw(t, "found"),
		Dax: rapid.Bool().Draw(t, "dax"), CopiedBytes: rapid.Int64Range(0, math.MaxInt64).Draw(t, "copied"),
		Encryption: text.Draw(t, "encryption"), EncryptionDiscards: rapid.Bool().Draw(t, "discards"),
		Encrypted: rapid.Bool().Draw(t, "encrypted"),
		FsUuid:    text.Draw(t, "fs uuid"), Profile: text.Draw(t, "profile"),
		FsSettings: rapid.MapOfN(text, text, 0, 3).Draw(t, "settings"),
	}
	if rapid.Bool().Draw(t, "has a source") {
		v.Source = &lvmdv1.VolumeSource{SnapshotId: text.Draw(t, "snapshot"), VolumeId: text.Draw(t, "volume")}
	}
	if rapid.Bool().Draw(t, "was emptied") {
		v.EmptiedAt = &timestamppb.Timestamp{Seconds: rapid.Int64().Draw(t, "emptied")}
	}
	return v
}

// inPieces is what comes over a connection: buffers that end anywhere.
func inPieces(t *rapid.T, encoded []byte) (pieces mem.BufferSlice) {
	for len(encoded) > 0 {
		n := rapid.IntRange(1, len(encoded)).Draw(t, "length of a piece")
		pieces = append(pieces, mem.SliceBuffer(encoded[:n]))
		encoded = encoded[n:]
	}
	return pieces
}

// TestAnswersAreReadAsTheyWereWritten: whatever lvmd says, its clients read what
// gRPC's own codec reads.
func TestAnswersAreReadAsTheyWereWritten(t *testing.T) {
	reader := answerReader{protoCodec()}
	rapid.Check(t, func(t *rapid.T) {
		volumes := rapid.SliceOfN(rapid.Custom(anyVolume), 0, 4).Draw(t, "volumes")
		for _, want := range []proto.Message{
			&lvmdv1.ListVolumesResponse{Volumes: volumes, NextPageToken: rapid.String().Draw(t, "next page")},
			&lvmdv1.WatchResponse{Epoch: "e", Generation: rapid.Uint64().Draw(t, "generation"), Volumes: volumes},
			&lvmdv1.CreateVolumeResponse{Volume: anyVolume(t)},
		} {
			encoded := must.Get(proto.Marshal(want))(t)
			got := want.ProtoReflect().New().Interface()
			if err := reader.Unmarshal(inPieces(t, encoded), got); err != nil || !proto.Equal(want, got) {
				t.Fatalf("read as %v, was written as %v, error %v", got, want, err)
			}
		}
	})
}

// TestAnswersThatAreNoneAreRefused: an answer that is cut or changed is refused, or
// read as something; it does no harm.
func TestAnswersThatAreNoneAreRefused(t *testing.T) {
	reader := answerReader{protoCodec()}
	rapid.Check(t, func(t *rapid.T) {
		list := &lvmdv1.ListVolumesResponse{Volumes: []*lvmdv1.Volume{anyVolume(t), anyVolume(t)}, NextPageToken: "next"}
		encoded := must.Get(proto.Marshal(list))(t)
		cut := encoded[:rapid.IntRange(1, len(encoded)-1).Draw(t, "cut")]
		theirs := proto.Unmarshal(cut, &lvmdv1.ListVolumesResponse{})
		if ours := reader.Unmarshal(inPieces(t, cut), &lvmdv1.ListVolumesResponse{}); (ours == nil) != (theirs == nil) {
			t.Fatalf("cut to %d of %d bytes: error %v, gRPC's own %v", len(cut), len(encoded), ours, theirs)
		}
		for range 3 {
			encoded[rapid.IntRange(0, len(encoded)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
		}
		got := &lvmdv1.ListVolumesResponse{}
		if err := reader.Unmarshal(inPieces(t, encoded), got); err == nil && len(got.GetVolumes()) > len(encoded)/2 {
			t.Fatalf("%d volumes in %d bytes", len(got.GetVolumes()), len(encoded))
		}
	})
}

// TestWhatIsNotAListIsWrittenAsUsual: a list that has volumes other than in its
// encoding is not sent without them.
func TestWhatIsNotAListIsWrittenAsUsual(t *testing.T) {
	v := &lvmdv1.Volume{Id: "a", Owner: &lvmdv1.Owner{}, CreatedAt: &timestamppb.Timestamp{}}
	for _, want := range []proto.Message{
		&lvmdv1.ListVolumesResponse{}, &lvmdv1.ListVolumesResponse{Volumes: []*lvmdv1.Volume{v}},
		&lvmdv1.ListVolumesResponse{NextPageToken: "a"}, &lvmdv1.GetVolumeResponse{Volume: v},
	} {
		written := must.Get(answerWriter{protoCodec(), &listBuffers{}}.Marshal(want))(t)
		got := want.ProtoReflect().New().Interface()
		if err := proto.Unmarshal(written.Materialize(), got); err != nil || !proto.Equal(want, got) {
			t.Errorf("written as %v, is %v, error %v", got, want, err)
		}
	}
}
