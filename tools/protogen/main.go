// Command protogen generates the Go code of api/lvmd/v1. It compiles the .proto files
// itself and hands them to the plugins that go.mod pins as tools, so that the result
// depends on nothing that is installed on the machine.
//
//	go run ./protogen [-check] ROOT
//
// ROOT is the folder of the main module. With -check nothing is written: the command
// fails where a file is not what would be generated.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/linker"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"

	"github.com/carve-csi/carve/tools/internal/generated"
)

const (
	module = "module=github.com/carve-csi/carve"
	lvmd   = "api/lvmd/v1/lvmd.proto"
	uplink = "api/lvmd/v1/uplink.proto"
)

// plugins are the tools that write the code.
var plugins = []string{"protoc-gen-go", "protoc-gen-go-grpc"}

func main() {
	check := flag.Bool("check", false, "compare the files with what would be generated, and write nothing")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, flag.Arg(0), *check); err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, root string, check bool) error {
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{root}}),
		SourceInfoMode: protocompile.SourceInfoStandard, // The comments become Go's.
	}
	compiled, err := compiler.Compile(ctx, lvmd, uplink)
	if err != nil {
		return fmt.Errorf("compile: %w", err)
	}
	descriptors := withImports(compiled)
	var problems []error
	for _, plugin := range plugins {
		request := &pluginpb.CodeGeneratorRequest{
			FileToGenerate: []string{lvmd, uplink}, Parameter: proto.String(module), ProtoFile: descriptors,
		}
		files, err := generate(ctx, plugin, request)
		if err != nil {
			return fmt.Errorf("%s: %w", plugin, err)
		}
		for _, file := range files {
			problems = append(problems, generated.Put(filepath.Join(root, file.GetName()), []byte(file.GetContent()), check))
		}
	}
	return errors.Join(problems...)
}

// withImports returns the descriptors of files and of all that they import, each
// after what it imports, as a plugin wants them.
func withImports(files linker.Files) []*descriptorpb.FileDescriptorProto {
	var ordered []*descriptorpb.FileDescriptorProto
	seen := map[string]bool{}
	var add func(file protoreflect.FileDescriptor)
	add = func(file protoreflect.FileDescriptor) {
		if seen[file.Path()] {
			return
		}
		seen[file.Path()] = true
		for i := range file.Imports().Len() {
			add(file.Imports().Get(i).FileDescriptor)
		}
		ordered = append(ordered, protoutil.ProtoFromFileDescriptor(file))
	}
	for _, file := range files {
		add(file)
	}
	return ordered
}

// generate runs a plugin.
func generate(ctx context.Context, tool string, request *pluginpb.CodeGeneratorRequest) ([]*pluginpb.CodeGeneratorResponse_File, error) {
	input, err := proto.Marshal(request)
	if err != nil {
		return nil, err
	}
	command := exec.CommandContext(ctx, "go", "tool", tool)
	command.Stdin, command.Stderr = bytes.NewReader(input), os.Stderr
	output, err := command.Output()
	if err != nil {
		return nil, err
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(output, &response); err != nil {
		return nil, fmt.Errorf("read its reply: %w", err)
	}
	if response.Error != nil {
		return nil, errors.New(response.GetError())
	}
	return response.File, nil
}
