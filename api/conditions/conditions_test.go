package conditions

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"

	"github.com/carve-csi/carve/pkg/must"
)

func TestTheTableIsSortedAndWhole(t *testing.T) {
	var types []string
	for _, c := range All {
		types = append(types, c.Type)
		if len(c.Of) == 0 || c.Meaning == "" || c.Remedy == "" {
			t.Errorf("%s lacks a subject, a meaning or a remedy", c.Type)
		}
	}
	if !slices.IsSorted(types) || len(slices.Compact(slices.Clone(types))) != len(types) {
		t.Errorf("the table is not sorted, or has a type twice: %v", types)
	}
	file := must.Get(parser.ParseFile(token.NewFileSet(), "conditions.go", nil, 0))(t)
	for _, decl := range file.Decls {
		gen, ok := decl.(*ast.GenDecl)
		if !ok || gen.Tok != token.CONST {
			continue
		}
		for _, spec := range gen.Specs {
			value, ok := spec.(*ast.ValueSpec)
			if !ok || value.Type != nil {
				continue
			}
			literal, ok := value.Values[0].(*ast.BasicLit)
			if !ok {
				t.Fatalf("constant %s is no literal", value.Names[0])
			}
			if name := must.Get(strconv.Unquote(literal.Value))(t); !slices.Contains(types, name) {
				t.Errorf("%s is a constant and not in the table", name)
			}
		}
	}
}

func TestWhatMakesAVolumeOrAClassUnusable(t *testing.T) {
	for subject, want := range map[Subject][]string{
		Volume: {ContentsNotFound, Failed, Inactive, MissingDevice, PoolFailed, PoolInactive, PoolMissing, Suspended, VolumeGroupMissing},
		Class:  {DuplicateDevice, NotResponding, PoolFailed, PoolInactive, PoolMissing, VolumeGroupForeign, VolumeGroupMissing, VolumeGroupOutdated, VolumeGroupReplaced},
		// A condition that makes a class unusable affects new volumes, too.
		NewVolume: {PoolKeepsOldData, VolumeGroupUnfit},
	} {
		if got := Unusable(subject); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", subject, got, want)
		}
	}
}
