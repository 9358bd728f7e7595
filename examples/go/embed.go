// Prints how alike two texts are: CGO_CFLAGS=-Icsrc/capi CGO_LDFLAGS="-Lbuild/dev -lweft" go run embed.go minilm.weft "a cat" "a kitten"
package main

// #include <stdlib.h>
// #include <weft.h>
import "C"

import (
	"fmt"
	"log"
	"math"
	"os"
	"unsafe"
)

func check(status C.weft_status) {
	if status != C.WEFT_OK {
		log.Fatal(C.GoString(C.weft_last_error()))
	}
}

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: embed BUNDLE TEXT TEXT")
	}
	var model *C.weft_model
	check(C.weft_open(C.CString(os.Args[1]), nil, &model))
	defer C.weft_close(model)
	size := int(C.weft_dimension(model))
	texts := (*[2]*C.char)(C.malloc(C.size_t(2 * unsafe.Sizeof(uintptr(0))))) // pointers that C reads live in C's memory
	texts[0], texts[1] = C.CString(os.Args[2]), C.CString(os.Args[3])
	v := make([]float32, 2*size)
	check(C.weft_embed(model, &texts[0], 2, nil, (*C.float)(unsafe.Pointer(&v[0]))))
	var dot, a, b float64
	for i := 0; i < size; i++ {
		x, y := float64(v[i]), float64(v[size+i])
		dot, a, b = dot+x*y, a+x*x, b+y*y
	}
	fmt.Printf("%.6f\n", dot/math.Sqrt(a*b))
}
