// An app in Go without an SDK: checksums of files. protocol.go speaks the app protocol with the standard library.
//
//	go build -o checksums . && kafleet dev -- ./checksums
//	kafleet submit checksums '{"folder": "."}' --wait
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Size of the blocks that are read between two checks for a cancel.
const blockBytes = 1 << 20

func main() {
	types := []Type{
		{
			Name: "checksum", Doc: "SHA-256 of a file.", Params: object("path"), run: checksum,
			Policy: map[string]any{"retries": 3, "timeout": "5m", "fail_on": []string{"not_found"}},
		},
		{Name: "checksums", Doc: "SHA-256 of each file of a folder, as child tasks.", Params: object("folder"), run: checksums},
	}
	if len(os.Args) > 1 && os.Args[1] == "test" {
		types = testTypes() // for `kafleet app test`
	}
	if err := Serve(10, types); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// object returns the schema of params with one text.
func object(name string) map[string]any {
	text := map[string]any{"type": "string"}
	return map[string]any{"type": "object", "properties": map[string]any{name: text}, "required": []string{name}}
}

func checksum(cx *Context, params json.RawMessage) (any, error) {
	var file struct{ Path string }
	if err := json.Unmarshal(params, &file); err != nil {
		return nil, err
	}
	opened, err := os.Open(file.Path)
	if os.IsNotExist(err) {
		return nil, &Failure{Outcome: "fail", Kind: "not_found", Message: err.Error()}
	}
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	hash, bytes := sha256.New(), int64(0)
	for {
		if err := cx.Err(); err != nil {
			return nil, err
		}
		read, err := io.CopyN(hash, opened, blockBytes)
		bytes += read
		if err == io.EOF {
			return map[string]any{"sha256": hex.EncodeToString(hash.Sum(nil)), "bytes": bytes}, nil
		}
		if err != nil {
			return nil, err
		}
		cx.Send("progress", map[string]any{"value": map[string]any{"bytes": bytes}})
	}
}

func checksums(cx *Context, params json.RawMessage) (any, error) {
	var in struct{ Folder string }
	if err := json.Unmarshal(params, &in); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(in.Folder)
	if err != nil {
		return nil, err
	}
	files := 0
	for _, entry := range entries {
		if entry.Type().IsRegular() {
			path := filepath.Join(in.Folder, entry.Name())
			cx.Spawn(map[string]any{"type": "checksum", "params": map[string]any{"path": path}})
			files++
		}
	}
	return files, nil
}
