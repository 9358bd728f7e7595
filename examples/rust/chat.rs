// Answers a message: rustc chat.rs -L build/dev -l weft && LD_LIBRARY_PATH=build/dev ./chat smol.weft "Name three colours."
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::io::Write;

#[repr(C)]
struct Message {
    role: *const c_char,
    content: *const c_char,
}
type OnToken = extern "C" fn(*mut c_void, i32, *const c_char, usize) -> c_int;

extern "C" {
    fn weft_open(folder: *const c_char, options: *const c_void, model: *mut *mut c_void) -> c_int;
    fn weft_close(model: *mut c_void);
    fn weft_last_error() -> *const c_char;
    fn weft_chat(model: *mut c_void, said: *const Message, count: usize, options: *const c_void,
                 on_token: OnToken, user: *mut c_void, result: *mut c_void) -> c_int;
}

extern "C" fn show(_user: *mut c_void, _id: i32, text: *const c_char, bytes: usize) -> c_int {
    let text = unsafe { std::slice::from_raw_parts(text as *const u8, bytes) };
    let mut out = std::io::stdout();
    (out.write_all(text).is_err() || out.flush().is_err()) as c_int // anything but 0 cancels
}

fn main() {
    let words: Vec<CString> = std::env::args().skip(1).map(|word| CString::new(word).unwrap()).collect();
    let [folder, question] = &words[..] else { panic!("usage: chat BUNDLE QUESTION") };
    let said = [Message { role: c"user".as_ptr(), content: question.as_ptr() }];
    let (mut model, none) = (std::ptr::null_mut(), std::ptr::null());
    let failed = |status: c_int| {
        if status != 0 {
            eprintln!("{}", unsafe { CStr::from_ptr(weft_last_error()) }.to_string_lossy());
            std::process::exit(1);
        }
    };
    failed(unsafe { weft_open(folder.as_ptr(), none, &mut model) });
    failed(unsafe { weft_chat(model, said.as_ptr(), 1, none, show, std::ptr::null_mut(), std::ptr::null_mut()) });
    unsafe { weft_close(model) };
}
