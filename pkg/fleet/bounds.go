package fleet

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that the readers add to
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

// What a node may report. The bounds are above what a node can hold, and keep a node
// that reports more from taking the controller's memory: every replica keeps the
// reports of all nodes.
const (
	// MaxVolumes is how many volumes a node may report.
	MaxVolumes = 20_000
	// MaxClasses is how many device classes a node may report.
	MaxClasses = 256
	// maxReportBytes bounds the encoded volumes and classes of a node, in one message
	// and in all that it reported.
	maxReportBytes = 16 << 20
	// maxReportFields bounds the fields of one message, with those of the messages in it.
	// Decoded, a field may take fifty times as much memory as encoded.
	maxReportFields = 40 * MaxVolumes
	// maxAnswerBytes and maxAnswerFields bound the answer to one call in the same way: it has one
	// volume or snapshot.
	maxAnswerBytes  = 64 << 10
	maxAnswerFields = 1000
	// callsOfAKind bounds how many calls of one kind are under way to a node. Those that wait for a
	// place hold no stream. Each may hold 64 KiB of the header of its answer; what has come of the answer
	// itself counts against the session, see package uplink. A quick kind does not wait for a slow one.
	callsOfAKind = 128
	// decodedAnswers and decodedReports bound how many of all nodes' messages are decoded at a time:
	// each takes many times its length meanwhile, and any number of nodes may send at once.
	decodedAnswers = 16
	decodedReports = 4
	// reportsPerSecond and reportsAtOnce bound how often a node's report is taken in: each
	// time takes the processor for as long as the node has volumes.
	reportsPerSecond = 100
	reportsAtOnce    = 200
)

// ReportRefusedError says that a node reported more than a node can hold, or what cannot be. Its
// report is not taken in.
type ReportRefusedError struct {
	Node string
	// Why is a sentence without its end.
	Why string
}

func (e *ReportRefusedError) Error() string {
	return fmt.Sprintf("the report of node %s is refused: %s", e.Node, e.Why)
}

// tooMuch refuses a report that has more of something than is allowed.
func tooMuch(node, what string, most int) *ReportRefusedError {
	return &ReportRefusedError{Node: node, Why: fmt.Sprintf("it has more %s than the %d that are allowed", what, most)}
}

// protoCodec is gRPC's own, which the readers add to.
var protoCodec = encoding.GetCodecV2("proto")

// boundedReader refuses reports that have too many parts before they are decoded. It
// is for one stream. What it refused is kept and returned as no error: gRPC passes on only the
// text of a codec's error, and would not count the message as read.
type boundedReader struct {
	encoding.CodecV2
	decoding places
	node     string
	refused  *ReportRefusedError
}

// Unmarshal implements encoding.CodecV2.
func (r *boundedReader) Unmarshal(encoded mem.BufferSlice, message any) error {
	defer r.decoding.take()()
	if _, ok := message.(*lvmdv1.WatchResponse); ok {
		if what, most := tooMany(encoded.Materialize()); what != "" {
			r.refused = tooMuch(r.node, what, most)
			return nil
		}
	}
	return r.CodecV2.Unmarshal(encoded, message)
}

// Numbers of the fields of a WatchResponse that hold messages.
const (
	fieldClasses protowire.Number = 4
	fieldVolumes protowire.Number = 5
)

// tooMany counts the parts of an encoded WatchResponse and returns of what there are
// too many, or nothing. What is not well formed is left to the decoder, which refuses
// it.
func tooMany(encoded []byte) (what string, most int) {
	parts := map[protowire.Number]int{}
	fields := countFields(encoded, (&lvmdv1.WatchResponse{}).ProtoReflect().Descriptor(), parts)
	switch {
	case parts[fieldVolumes] > MaxVolumes:
		return "volumes", MaxVolumes
	case parts[fieldClasses] > MaxClasses:
		return "device classes", MaxClasses
	case fields > maxReportFields:
		return "fields", maxReportFields
	}
	return "", 0
}

// countFields returns how many fields an encoded message has, with those of the messages in it.
// It counts those of the message itself in byNumber, too, unless that is nil.
func countFields(encoded []byte, message protoreflect.MessageDescriptor, byNumber map[protowire.Number]int) int {
	count := 0
	for len(encoded) > 0 {
		number, kind, tag := protowire.ConsumeTag(encoded)
		length := protowire.ConsumeFieldValue(number, kind, encoded[max(tag, 0):])
		if tag < 0 || length < 0 {
			break
		}
		count++
		if byNumber != nil {
			byNumber[number]++
		}
		if field := message.Fields().ByNumber(number); kind == protowire.BytesType && field != nil && field.Message() != nil {
			part, _ := protowire.ConsumeBytes(encoded[tag:])
			count += countFields(part, field.Message(), nil)
		}
		encoded = encoded[tag+length:]
	}
	return count
}

// answerReader refuses answers that have too many fields before they are decoded, and bounds the
// texts of the others.
type answerReader struct {
	encoding.CodecV2
	decoding places
}

// Unmarshal implements encoding.CodecV2.
func (r answerReader) Unmarshal(encoded mem.BufferSlice, message any) error {
	defer r.decoding.take()()
	m, ok := message.(proto.Message)
	if !ok {
		return r.CodecV2.Unmarshal(encoded, message)
	}
	if fields := countFields(encoded.Materialize(), m.ProtoReflect().Descriptor(), nil); fields > maxAnswerFields {
		return fmt.Errorf("the answer has %d fields, more than the %d that are allowed", fields, maxAnswerFields)
	}
	if err := r.CodecV2.Unmarshal(encoded, message); err != nil {
		return err
	}
	if err := boundTexts(m).refused; err != nil {
		return fmt.Errorf("the answer has no valid %w", err)
	}
	return nil
}

// unread drops answers of which nothing is wanted.
type unread struct{ encoding.CodecV2 }

// Unmarshal implements encoding.CodecV2.
func (unread) Unmarshal(mem.BufferSlice, any) error { return nil }

// places are those for messages that are decoded at a time. Who has one waits for nothing.
type places chan struct{}

func (p places) take() (leave func()) {
	p <- struct{}{}
	return func() { <-p }
}

// exceeds returns of what a view has too much, or nothing.
func (v *View) exceeds() *ReportRefusedError {
	switch {
	case len(v.Volumes) > MaxVolumes:
		return tooMuch(v.Node, "volumes", MaxVolumes)
	case len(v.Classes) > MaxClasses:
		return tooMuch(v.Node, "device classes", MaxClasses)
	case v.bytes > maxReportBytes:
		return tooMuch(v.Node, "bytes of volumes and device classes", maxReportBytes)
	}
	return nil
}
