package fleet

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/must"
)

// textField is a text field in an answer of a node, with the fields that lead to it. For a map,
// text is its key or value field.
type textField struct {
	answer protoreflect.MessageDescriptor
	way    []protoreflect.FieldDescriptor
	text   protoreflect.FieldDescriptor
}

func textFields(t *testing.T) (all []textField) {
	t.Helper()
	methods := lvmdv1.File_api_lvmd_v1_lvmd_proto.Services().ByName("LVMD").Methods()
	for i := range methods.Len() {
		answer := methods.Get(i).Output()
		var walk func(protoreflect.MessageDescriptor, []protoreflect.FieldDescriptor)
		walk = func(message protoreflect.MessageDescriptor, way []protoreflect.FieldDescriptor) {
			for i := range message.Fields().Len() {
				field := message.Fields().Get(i)
				here := slices.Concat(way, []protoreflect.FieldDescriptor{field})
				switch {
				case field.IsMap():
					all = append(all, textField{answer, here, field.MapKey()}, textField{answer, here, field.MapValue()})
				case field.Kind() == protoreflect.StringKind:
					all = append(all, textField{answer, way, field})
				case field.Kind() == protoreflect.BytesKind || field.Kind() == protoreflect.GroupKind:
					t.Errorf("%s is of a kind that is not bounded: %s", field.FullName(), field.Kind())
				case field.Kind() == protoreflect.MessageKind:
					walk(field.Message(), here)
				}
			}
		}
		walk(answer, nil)
	}
	return all
}

// with returns an answer that holds only the text.
func (p textField) with(t *testing.T, text string) proto.Message {
	t.Helper()
	kind := must.Get(protoregistry.GlobalTypes.FindMessageByName(p.answer.FullName()))(t)
	answer := kind.New()
	m, value := answer, protoreflect.ValueOfString(text)
	for _, field := range p.way {
		switch {
		case field.IsMap() && p.text == field.MapKey():
			m.Mutable(field).Map().Set(value.MapKey(), protoreflect.ValueOfString("value"))
			return answer.Interface()
		case field.IsMap():
			m.Mutable(field).Map().Set(protoreflect.ValueOfString("key").MapKey(), value)
			return answer.Interface()
		case field.IsList():
			m = m.Mutable(field).List().AppendMutable().Message()
		default:
			m = m.Mutable(field).Message()
		}
	}
	if p.text.IsList() {
		m.Mutable(p.text).List().Append(value)
	} else {
		m.Set(p.text, value)
	}
	return answer.Interface()
}

// A new field needs an entry in textBounds.
func TestEveryTextOfANodeIsBounded(t *testing.T) {
	seen := map[protoreflect.FullName]bool{}
	for _, p := range textFields(t) {
		field := p.text.FullName()
		seen[field] = true
		bound, ok := textBounds[field]
		if !ok {
			t.Errorf("%s has no bound", field)
			continue
		}
		for what, text := range map[string]string{
			"long": strings.Repeat("x", 20<<10), "of a terminal": "a\x1b[2Jb", "of lines": strings.Repeat("\x00\r", 10),
			"a name with what names have not": "a b", "another alphabet": "ä",
		} {
			message := p.with(t, text)
			got := boundTexts(message)
			left := string(must.Get(proto.Marshal(message))(t))
			if got.refused != nil {
				continue
			}
			if len(left) > 1200 || strings.Contains(left, "\x1b[") || strings.Contains(left, "\x00\r") || !bound.prose && strings.Contains(left, text) {
				t.Errorf("a text that is %s is left in %s of %s", what, field, p.answer.Name())
			}
		}
		message := p.with(t, "fits")
		before := proto.Clone(message)
		if got := boundTexts(message); got != (texts{}) || !proto.Equal(message, before) {
			t.Errorf("%s: a text that fits becomes %v, %+v", field, message, got)
		}
	}
	for field := range textBounds {
		if !seen[field] {
			t.Errorf("there is no %s", field)
		}
	}
}

func TestANameThatIsNoneIsLeftOutAndAKeyRefused(t *testing.T) {
	vol := &lvmdv1.Volume{Id: "v", VgName: "a b", VgUuid: "u", Conditions: []*lvmdv1.Condition{{Type: "\x1b[2J", Message: "m"}},
		FsSettings: map[string]string{"label": "x", "a b": "y"}, Owner: &lvmdv1.Owner{ClaimName: "a\nb", ClaimNamespace: "n"}}
	want := &lvmdv1.Volume{Id: "v", VgUuid: "u", Conditions: []*lvmdv1.Condition{{Type: "Unknown", Message: "m"}},
		FsSettings: map[string]string{"label": "x"}, Owner: &lvmdv1.Owner{ClaimNamespace: "n"}}
	if got := boundTexts(vol); got.refused != nil || got.leftOut == nil || !proto.Equal(vol, want) {
		t.Errorf("left is %v, %+v", vol, got)
	}
	got := boundTexts(&lvmdv1.WatchResponse{Classes: []*lvmdv1.DeviceClass{{Name: "fast"}, {Name: "a/b"}}})
	if got.refused == nil || got.refused.Error() != `DeviceClass.name: "a/b" is not allowed, allowed: at most 128 letters, digits and characters of "+_.-"` {
		t.Errorf("a class with a name that is none: %v", got.refused)
	}
}

func TestOfAnErrorOfANodeNothingButCodeReasonAndTextIsLeft(t *testing.T) {
	given := func(code codes.Code, message, domain, reason string) error {
		s := must.Get(status.New(code, message).WithDetails(
			&errdetails.ErrorInfo{Domain: domain, Reason: reason, Metadata: map[string]string{"x": strings.Repeat("x", 10_000)}},
			&errdetails.DebugInfo{Detail: strings.Repeat("x", 10_000)}))(t)
		return s.Err()
	}
	for name, test := range map[string]struct {
		err     error
		code    codes.Code
		message string
		reason  string
	}{
		"lvmd's":                      {given(codes.ResourceExhausted, "full", names.ErrorDomain, names.ReasonNoSpace), codes.ResourceExhausted, "full", names.ReasonNoSpace},
		"a code that gRPC has not":    {given(4711, "x", names.ErrorDomain, names.ReasonNoSpace), codes.Unknown, "x", names.ReasonNoSpace},
		"another's reason":            {given(codes.Internal, "x", "example.com", names.ReasonNoSpace), codes.Internal, "x", ""},
		"a reason that is none":       {given(codes.Internal, "x", names.ErrorDomain, "no\x1b[2J"), codes.Internal, "x", ""},
		"a text that clears a screen": {given(codes.Internal, "a\x1b[2Jb\nc", names.ErrorDomain, names.ReasonCommandFailed), codes.Internal, "a [2Jb\nc", names.ReasonCommandFailed},
	} {
		got := status.Convert(boundError(test.err))
		if got.Code() != test.code || got.Message() != test.message || Reason(got.Err()) != test.reason || proto.Size(got.Proto()) > 300 {
			t.Errorf("%s: %v", name, got.Proto())
		}
	}
	if err := boundError(nil); err != nil {
		t.Errorf("no error becomes %v", err)
	}
}
